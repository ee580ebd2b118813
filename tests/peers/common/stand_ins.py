"""Modules that a project imports and that a test does not use: each has whatever is asked of it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any
from unittest import mock


class _Anything(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == one or name.startswith(f"{one}.") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Anything(spec.name)

    def exec_module(self, module: Any) -> None: ...


def install(*names: str) -> None:
    """In the place of these modules, and of all below them; before the project is imported."""
    sys.meta_path.insert(0, _Finder(names))
