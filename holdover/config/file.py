"""Reading a configuration file: the one file that is opened before there is a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdover.errors import ConfigurationError

if TYPE_CHECKING:
    from yaml.nodes import Node

FILE_BYTES_MAX = 1 << 20
_DEPTH_MAX = 16


def read_config_file(path: str) -> list[tuple[str, str, str]]:
    """(key, value, origin) of every option in a YAML file, keys joined by dots.

    Values stay as they are written: `on`, `1_000` and `08` mean what their option says, not what
    YAML makes of them. Raises ConfigurationError, naming file and line, when the file cannot be
    read, is no mapping, or sets a key twice.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read configuration file {path}: {error.strerror or error}"
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"configuration file {path} is over {FILE_BYTES_MAX} bytes")
    return parse_config(content, path)


def parse_config(content: bytes, name: str) -> list[tuple[str, str, str]]:
    """As `read_config_file`, for content that was read from the file `name`."""
    import yaml  # only processes with a configuration file pay for it

    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name} is not YAML: {error}") from error
    options: list[tuple[str, str, str]] = []
    if root is not None:
        if not isinstance(root, yaml.MappingNode):
            raise ConfigurationError(f"{name} must hold keys and values: write `key: value` lines")
        _collect(root, "", name, options, 0)
    lines: dict[str, str] = {}
    for key, _, origin in options:
        if key in lines:
            raise ConfigurationError(f"{key} is set twice: in {lines[key]} and {origin}", key=key)
        lines[key] = origin
    return options


def _collect(
    node: Node, prefix: str, name: str, options: list[tuple[str, str, str]], depth: int
) -> None:
    import yaml

    origin = f"{name} line {node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        if node.tag.endswith(":null"):
            raise ConfigurationError(f"{prefix} has no value in {origin}", key=prefix)
        options.append((prefix, node.value.strip(), origin))
        return
    if not isinstance(node, yaml.MappingNode) or depth >= _DEPTH_MAX:
        raise ConfigurationError(f"{prefix} must have one value in {origin}", key=prefix)
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
            raise ConfigurationError(
                f"{name} line {key_node.start_mark.line + 1}: an option's key must be text"
            )
        key = f"{prefix}.{key_node.value}" if prefix else key_node.value
        _collect(value_node, key, name, options, depth + 1)
