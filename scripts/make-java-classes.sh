#!/usr/bin/env bash
# Compiles cdc/lake/runtime/java into cdc/lake/runtime/towpath.jar, with Java 17 and the jars of Spark and Delta.
# The jar is kept in git, because users have no compiler; a test compares it with its sources.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m tests.support.java_classes
