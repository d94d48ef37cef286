"""YAML files of keys and values, each key once; each error is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from streameval.base.errors import ConfigError


def read(path: Path, example: str) -> Mapping[str, Any]:
    """Read the keys and values of a file; `example` shows people the form. Raises ConfigError."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  # safe
    except FileNotFoundError:
        cure = "correct the path, or write one with `streameval init`"
        raise ConfigError(f"{path}: no such file: {cure}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # Within [ ] or { } YAML ends a text at a brace: the names of some metrics have one.
        cure = "; write text with braces in quotes" if "got '{'" in str(error.problem) else ""
        raise ConfigError(f"{path}: line {line}: {error.problem}{cure}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deep; write keys, like `{example}`") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: write keys and values, like `{example}`")
    return {str(key): value for key, value in document.items()}


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key that stands twice and a wrong date."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001  # as PyYAML
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"{node.value!r} does not fit its tag"
            if isinstance(error, ValueError):
                problem = f"{node.value!r} is neither a date nor a number: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(  # as PyYAML has it
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001  # the same
    ) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands there twice", key.start_mark
                )
        return super().construct_mapping(node, deep=deep)
