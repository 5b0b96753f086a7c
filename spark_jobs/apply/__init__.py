"""From changes to one statement per table and batch."""
