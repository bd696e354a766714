"""The options of a save are stated in one table, `cairn.SaveTuning`, and in the signature of
`Store.save`. Everything else that names them agrees with these two."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from cairn import SaveTuning, Store, _cairn
from cairn._save.options import SaveOptions, recordable_metrics

NOT_OF_ALL_RANKS = {"differing", "ignore_frozen", "records", "parent", "run"}
"""Fields of the table that C++ does not get, or only from rank 0."""


def table() -> dict[str, str]:
    """The sentence of each field of SaveTuning."""
    body = ast.parse(textwrap.dedent(inspect.getsource(SaveTuning))).body[0].body
    return {
        field.target.id: text.value.value
        for field, text in zip(body, body[1:])
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def parameters(method: object) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def test_each_field_of_the_table_has_a_type_a_default_and_a_sentence():
    assert list(table()) == [field.name for field in fields(SaveTuning)]
    assert all(text.endswith(".") for text in table().values())
    assert SaveTuning() == SaveTuning(**{field.name: field.default for field in fields(SaveTuning)})
    with pytest.raises(FrozenInstanceError):
        SaveTuning().deltas = True


def test_the_binding_reads_the_table():
    named = {field.name for field in fields(SaveTuning)} - NOT_OF_ALL_RANKS
    assert set(SaveTuning().native()) == named
    # Refuses names that it does not know.
    _cairn.check_save(1, _cairn.flatten({}, str, []), **SaveTuning().native())


def test_the_calls_that_save_have_the_same_parameters():
    assert len(parameters(Store.save)) <= 12
    assert parameters(Store.save_async) == parameters(Store.save)
    not_streamed = ("state", "keys", "prefix")
    expected = [name for name in parameters(Store.save) if name not in not_streamed]
    assert parameters(Store.writer) == expected
    assert set(SaveOptions._fields) <= set(parameters(Store.save))
    defaults = {
        name: each.default for name, each in inspect.signature(Store.save).parameters.items()
    }
    assert SaveOptions._field_defaults.items() <= defaults.items()


def test_the_docstring_of_save_describes_every_parameter():
    section = inspect.getdoc(Store.save).split("Args:\n")[1].split("\n\n")[0]
    described = re.findall(r"^    ([\w, ]+):", section, re.MULTILINE)
    assert ", ".join(described).split(", ") == parameters(Store.save)


def test_options_that_the_binding_does_not_know_are_refused(store):
    with pytest.raises(TypeError, match="an unknown keyword argument"):
        _cairn.check_save(1, _cairn.flatten({}, str, []), delta=1)


def test_of_the_metrics_of_a_trainer_those_that_fit_are_recorded(store):
    given = {"val loss": 1.0, "\udc80": 2.0, **{f"class/{i}": np.float32(i) for i in range(70)}}
    with pytest.warns(RuntimeWarning, match="left out: .*'val loss'"):
        metrics = recordable_metrics(given, "class/69:3:max")
    store.save(1, {}, metrics=metrics)
    recorded = store.step_info(1).metrics
    assert len(recorded) == 64 and recorded["class/69"] == 69 and recorded["class/62"] == 62
