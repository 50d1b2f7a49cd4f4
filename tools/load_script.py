"""Loads a script of this folder, which has no suffix, as a module for its tests."""

import importlib.machinery
import importlib.util
import pathlib


def load_script(name):
    path = pathlib.Path(__file__).resolve().parent / name
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module
