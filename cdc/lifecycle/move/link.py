"""The calls of a move over the standard input and output of a command: ``ssh HOST cdc … move DEST --receive``.

A call is a line of JSON, for a file followed by its bytes; the answer is a line of JSON. The receiver begins with a
line of its own, so that what a login shell prints before is noticed, and passed over.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, BinaryIO

from cdc.base.errors import CdcError, PeerUnavailableError, UsageError
from cdc.lifecycle.move.receiver import Begun, FileSum, Offer, Proof, Receives, read_chunks
from cdc.wire.protocol import error_document, error_of

VERSION = 1
_GREETING = "towpath-move"
_NOISE_LINES = 100


class Link:
    """The receiver at the other end of a command. See :class:`cdc.lifecycle.move.receiver.Receiver`."""

    def __init__(self, command: str, destination: str) -> None:
        """Starts the command, which runs ``cdc`` on the other machine. Raises PeerUnavailableError, UsageError."""
        self._line = [*shlex.split(command), "move", destination, "--receive"]
        self._place = shlex.join(self._line)
        try:
            self._process = subprocess.Popen(self._line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise UsageError(f"cannot be run: {error.strerror or error}", place=self._place) from None
        self._greet()

    def _greet(self) -> None:
        for _ in range(_NOISE_LINES):
            try:
                greeting = json.loads(self._read())
            except ValueError:
                continue  # a login shell has said something
            if isinstance(greeting, dict) and _GREETING in greeting:
                if greeting[_GREETING] != VERSION:
                    raise UsageError(
                        f"the other side has version {greeting[_GREETING]} of this protocol, not {VERSION}",
                        place=self._place,
                        remedy="Install the same version of Towpath on both machines.",
                    )
                return
        raise UsageError("does not answer as `cdc move --receive`", place=self._place)

    def begin(self, offer: Offer) -> Begun:
        answer = self._ask({"call": "begin", "offer": asdict(offer)})
        return Begun(**{**answer, "present": _sums(answer["present"])})

    def put(self, path: str, size: int, chunks: Iterable[bytes]) -> None:
        sent = 0
        self._send(json.dumps({"call": "put", "path": path, "size": size}).encode() + b"\n")
        for chunk in chunks:
            self._send(chunk)
            sent += len(chunk)
        if sent != size:
            self.close()
            raise UsageError("became shorter while it was copied", place=path)
        self._answer()

    def prove(self, base_name: str) -> Proof:
        answer = self._ask({"call": "prove", "base_name": base_name})
        return Proof(**{**answer, "files": _sums(answer["files"])})

    def activate(self) -> None:
        self._ask({"call": "activate"})

    def close(self) -> None:
        """Ends the command: the receiver ends with its input."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(OSError):  # it has ended before
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()

    def _ask(self, call: dict[str, Any]) -> Any:
        self._send(json.dumps(call).encode() + b"\n")
        return self._answer()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            self._answer()  # the error that it has said before it ended
            raise self._ended() from None

    def _answer(self) -> Any:
        document = json.loads(self._read())
        error = error_of(document)
        if error is not None:
            raise error
        return document["answer"]

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        return line

    def _ended(self) -> CdcError:
        try:
            code: object = self._process.wait(10)
        except subprocess.TimeoutExpired:
            code = "unknown"
        return PeerUnavailableError(
            f"the other side has ended (exit code {code})",
            place=self._place,
            remedy="See what it has printed, and run `cdc move` again.",
        )


def serve(open_receiver: Callable[[], Receives], source: BinaryIO, sink: BinaryIO) -> None:
    """Answers the calls of a sender until its end. An error ends it, after it was sent. Raises it."""

    def say(document: dict[str, Any]) -> None:
        sink.write(json.dumps(document).encode() + b"\n")
        sink.flush()

    say({_GREETING: VERSION})
    receiver: Receives | None = None
    try:
        while (line := source.readline()).endswith(b"\n"):
            call = json.loads(line)
            if receiver is None:
                receiver = open_receiver()
            say({"answer": _do(receiver, call, source)})
    except CdcError as error:
        with suppress(BrokenPipeError):
            say(error_document(error))
        raise
    except BrokenPipeError:
        raise PeerUnavailableError("the sender has ended", remedy="Run `cdc move` there again.") from None
    finally:
        if receiver is not None:
            receiver.close()


def _do(receiver: Receives, call: dict[str, Any], source: BinaryIO) -> Any:
    match call["call"]:
        case "begin":
            offer = call["offer"]
            return asdict(receiver.begin(Offer(**{**offer, "files": _sums(offer["files"])})))
        case "put":
            receiver.put(call["path"], call["size"], read_chunks(source, call["size"]))
            return None
        case "prove":
            return asdict(receiver.prove(call["base_name"]))
        case "activate":
            receiver.activate()
            return None
    raise UsageError(f"{call['call']!r} is not a call of a move")


def _sums(documents: list[dict[str, Any]]) -> tuple[FileSum, ...]:
    return tuple(FileSum(**document) for document in documents)
