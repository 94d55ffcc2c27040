"""The `holdfast` command: parse, call, print."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; what goes wrong is one line on stderr, with exit code 2."""
    from typer.exceptions import Abort, Exit, TyperException

    from holdfast.cli.app import app
    from holdfast.errors import HoldfastError
    from holdfast.memory import keep_freed_memory

    keep_freed_memory()
    try:
        code = app(prog_name="holdfast", standalone_mode=False)
    except HoldfastError as error:
        _fail(str(error) if error.option is None else f"{error} (--{error.option.replace('_', '-')})")
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}; check the path and its permissions")
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            sys.exit(2)
        _fail(f"{_message(error)} (see 'holdfast --help')")
    except Exit as exit_:
        sys.exit(exit_.exit_code)
    except (Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str:
    formatted = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(str(formatted).split())


def _fail(line: str) -> None:
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
