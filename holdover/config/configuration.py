"""Configuration: the options of one process or job, validated as a whole when it is loaded."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from holdover.config.file import read_config_file
from holdover.config.options import OPTIONS
from holdover.config.relations import RELATIONS, REQUIREMENTS
from holdover.config.values import Option
from holdover.errors import ConfigurationError

if TYPE_CHECKING:
    from holdover.v1.common_pb2 import ConfigEntry

V = TypeVar("V")

#: Environment variables with our prefix that are no options.
RESERVED_ENVIRONMENT = ("HOLDOVER_HOME", "HOLDOVER_CONFIG", "HOLDOVER_CACHE")
_PREFIX = "HOLDOVER_"
# A user and password in a URL, which no option has a place for, are not repeated to anybody.
_USER = re.compile(r"://[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as somebody wrote it; `origin` says where and is empty for a default."""

    text: str
    origin: str

    def __str__(self) -> str:
        """`'5 s' from holdover.yaml line 3`, or `'5 s', the default`."""
        return f"{self.text!r} from {self.origin}" if self.origin else f"{self.text!r}, the default"


class Configuration:
    """Values of all options; immutable.

    Made by `load` (a process's own configuration), `of` and `from_entries` (from texts).
    Every constructor raises ConfigurationError for an unknown key, an impossible value, and
    options that contradict each other; the message names key, value and origin (P63).
    """

    def __init__(
        self, settings: Mapping[str, Setting] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Validates `settings` by key. `env` is where the default directories come from."""
        self._settings: dict[str, Setting] = dict(sorted((settings or {}).items()))
        self._env: dict[str, str] = dict(env or {})
        for key, setting in self._settings.items():
            if key not in OPTIONS:
                raise _unknown_key(key, setting.origin)
        defaults = _default_values()
        self._values: dict[str, Any] = {
            key: defaults[key]
            if key in defaults and key not in self._settings
            else parse_value(option, self._setting(option))
            for key, option in OPTIONS.items()
        }
        self._check_relations()
        self._check_requirements()

    @classmethod
    def load(
        cls,
        file: str | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Sequence[str] = (),
    ) -> Configuration:
        """The configuration of a process, from sources of rising priority.

        Args:
            file: path of a YAML file with nested or dotted keys; None for none.
            env: environment variables; those named HOLDOVER_... set options. None for none.
            overrides: "key=value" texts, as after `-D` on a command line.
        """
        settings: dict[str, Setting] = {}
        if file is not None:
            for key, text, origin in read_config_file(file):
                settings[key] = Setting(text, origin)
        settings.update(_environment_settings(env or {}))
        for override in overrides:
            key, separator, text = override.partition("=")
            if not separator or not key.strip():
                raise ConfigurationError(f"-D {override}: write it as -D key=value")
            settings[key.strip()] = Setting(text.strip(), f"-D {override}")
        return cls(settings, env)

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Configuration:
        """The configuration with these texts by key, and defaults for the rest."""
        return cls({key: Setting(text, "code") for key, text in values.items()})

    @classmethod
    def from_entries(cls, entries: Iterable[ConfigEntry]) -> Configuration:
        """The configuration that another process sent with `to_entries`."""
        return cls({entry.key: Setting(entry.value, "a message") for entry in entries})

    def get(self, option: Option[V]) -> V:
        """The value: seconds for a duration, bytes for a size, otherwise bool, int, float, str."""
        value: V = self._values[option.key]
        return value

    def text(self, option: Option[Any]) -> str:
        """The value as it is written in a configuration file."""
        return self._setting(option).text

    def with_overrides(self, entries: Iterable[ConfigEntry]) -> Configuration:
        """This configuration with a job's own options, of which only job-level ones are allowed."""
        origin = "the job's options"
        changed = copy.copy(self)
        changed._settings, changed._values = self._settings.copy(), self._values.copy()
        for entry in entries:
            changed._values[entry.key] = check_job_option(entry.key, entry.value, origin)
            changed._settings[entry.key] = Setting(entry.value.strip(), origin)
        changed._settings = dict(sorted(changed._settings.items()))
        changed._check_relations()
        changed._check_requirements()
        return changed

    def to_entries(self, *options: Option[Any]) -> list[ConfigEntry]:
        """Messages for another process: these options, or else all that were set, by key."""
        from holdover.v1.common_pb2 import ConfigEntry  # the stubs are slow to import

        keys = sorted(option.key for option in options) if options else list(self._settings)
        return [ConfigEntry(key=key, value=self.text(OPTIONS[key])) for key in keys]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values.values()))

    def __repr__(self) -> str:
        texts = {key: setting.text for key, setting in self._settings.items()}
        return f"Configuration({texts})"

    def _setting(self, option: Option[Any]) -> Setting:
        return self._settings.get(option.key) or Setting(
            option.default.format(
                home=self._env.get("HOLDOVER_HOME") or "~/.holdover/local",
                temp=self._env.get("TMPDIR") or "/tmp",
            ),
            origin="",
        )

    def _check_relations(self) -> None:
        for relation in RELATIONS:
            lesser, greater = relation.lesser, relation.greater
            low, high = self._values[lesser.key], self._values[greater.key]
            if low < high or (low == high and relation.or_equal):
                continue
            must = "must be at most" if relation.or_equal else "must be less than"
            raise ConfigurationError(
                f"{lesser.key} ({self._setting(lesser)}) {must}"
                f" {greater.key} ({self._setting(greater)}): otherwise {relation.reason}",
                key=lesser.key,
            )

    def _check_requirements(self) -> None:
        for requirement in REQUIREMENTS:
            switch = requirement.switch
            is_on = self._values[switch.key]
            for option in requirement.needed if is_on else ():
                if not self._values[option.key]:
                    raise ConfigurationError(
                        f"{switch.key} ({self._setting(switch)}) needs {option.key}, which is not"
                        " set",
                        key=option.key,
                    )
            for option in (*requirement.needed, *requirement.optional):
                if self._values[option.key] and switch.key not in self._settings:
                    raise ConfigurationError(
                        f"{option.key} ({self._setting(option)}) has no effect while"
                        f" {switch.key} is not set: set it to true, or to false if that is meant",
                        key=switch.key,
                    )


@cache
def _default_values() -> dict[str, Any]:
    """The defaults that name no directory of the environment, by key. Parsed once: most options of
    most configurations are these."""
    return {
        key: parse_value(option, Setting(option.default, origin=""))
        for key, option in OPTIONS.items()
        if "{" not in option.default and "~" not in option.default
    }


def parse_value(option: Option[V], setting: Setting) -> V:
    """The value of `option` that `setting` stands for; raises ConfigurationError."""
    try:
        return option.type.parse(setting.text)
    except ValueError:
        shown = _USER.sub("://...@", str(setting))
        raise ConfigurationError(
            f"{option.key} is {shown}, but must be {option.type.allowed}",
            key=option.key,
        ) from None


def check_job_option(key: str, text: str, origin: str) -> Any:
    """The option's value; raises ConfigurationError unless a job may set it to this text."""
    option = OPTIONS.get(key)
    if option is None:
        raise _unknown_key(key, origin)
    if not option.job_level:
        raise ConfigurationError(
            f"{key} (from {origin}) cannot be set by a job: set it for the cluster", key=key
        )
    return parse_value(option, Setting(text.strip(), origin))


def _environment_settings(env: Mapping[str, str]) -> dict[str, Setting]:
    by_name = {option.environment_name: option.key for option in OPTIONS.values()}
    settings: dict[str, Setting] = {}
    for name in sorted(env):
        if not name.startswith(_PREFIX) or name in RESERVED_ENVIRONMENT:
            continue
        if name not in by_name:
            raise ConfigurationError(
                f"environment variable {name} sets no option"
                f"{_nearest(name, (*by_name, *RESERVED_ENVIRONMENT))}"
            )
        settings[by_name[name]] = Setting(env[name].strip(), f"environment variable {name}")
    return settings


def _unknown_key(key: str, origin: str) -> ConfigurationError:
    return ConfigurationError(
        f"unknown option {key!r} (from {origin}){_nearest(key, tuple(OPTIONS))}", key=key
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    import difflib  # slow to import, and only a mistake needs it

    folded = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {folded[near[0]]}?"
    return "; docs/configuration.md lists all options"
