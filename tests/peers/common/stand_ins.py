"""Makes stand-ins for modules that a project imports and a test does not use. A stand-in has every attribute that is
asked for."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any
from unittest import mock


class _Anything(types.ModuleType):
    __path__ = ()

    def __init__(self, name: str, classes: bool) -> None:
        super().__init__(name)
        self._classes = classes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = self._classes and name[0].isupper()
        made = type(name, (), {}) if is_class else mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...], classes: bool, keep: str, version: str) -> None:
        self._names, self._classes, self._keep, self._version = names, classes, keep, version

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._keep and self._keep in name:
            return None
        if any(name == top or name.startswith(f"{top}.") for top in self._names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = _Anything(spec.name, self._classes)
        if self._version:
            module.__version__ = self._version
        return module

    def exec_module(self, module: Any) -> None: ...


class _Hidden(importlib.abc.MetaPathFinder):
    def __init__(self, hidden: str) -> None:
        self._hidden = hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self._hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def install(*names: str, classes: bool = False, keep: str = "", version: str = "") -> None:
    """Replaces these modules and all below them; call it before the project is imported.

    classes: if true, an attribute with a capitalized name is a class, for projects that derive classes from it
    keep: modules with this in their name are not replaced
    version: the modules' __version__
    """
    sys.meta_path.insert(0, _Finder(names, classes, keep, version))


def hide(name: str) -> None:
    """Makes the import of a module, or of one below it, fail as if the module did not exist. It does not exist; but a
    folder on Python's path has its name, and could be imported as a package."""
    sys.meta_path.insert(0, _Hidden(name))
