"""Texts that are in memory already, with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncsam._arguments import instance
from ncsam._errors import bad_value
from ncsam.data.modalities.text import MAX_LENGTH, MAX_WORDS, TextList, tokenizer_for
from ncsam.data.registry import check
from ncsam.data.types import DataSet, Split, encode_labels


def from_texts(
    texts: Sequence[str],
    y: Any,
    *,
    y_clean: Any = None,
    texts_test: Sequence[str] | None = None,
    y_test: Any = None,
    classes: Sequence[str] | None = None,
    tokenizer: str = "words",
    max_words: int = MAX_WORDS,
    max_length: int = MAX_LENGTH,
    name: str = "texts",
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from texts and their labels.

    Args:
        texts, y, y_clean: For training; the clean labels, where known, reach metrics only.
        texts_test, y_test: For the test.
        classes: Class names in order. Default: the names found, sorted, or the numbers.
        tokenizer: "words" is a plain vocabulary of the training texts: lower-case words and single signs. Anything else
            is a tokenizer of `transformers`: a published name, or a folder that holds one.
        max_words: The most words of the vocabulary; the more frequent ones stay, all others are one unknown word.
        max_length: The most tokens of a text; what follows is cut off.
        name: The dataset's name.
        allow_empty: Accept classes without a training text.
    """
    instance("name", name, str, "text")
    if y is None:
        raise bad_value("y", y, "a label for each sample")
    if (texts_test is None) != (y_test is None):
        raise ValueError(f"{name}: texts_test and y_test go together; one of them is missing")
    for argument, given in (("texts", texts), ("texts_test", texts_test)):
        missing = given is None and argument != "texts"
        listed = missing or (isinstance(given, Sequence) and not isinstance(given, str))
        if not listed or not all(isinstance(text, str) for text in given or ()):
            raise bad_value(argument, type(given).__name__, "a sequence of texts")
    (observed, clean, tested), class_names = encode_labels([y, y_clean, y_test], classes, where=name)
    assert observed is not None
    chosen = tokenizer_for(tokenizer, texts, max_words)
    test = None
    if tested is not None and texts_test is not None:
        test = Split(TextList(texts_test, chosen, max_length), tested)
    train = Split(TextList(texts, chosen, max_length), observed, clean)
    return check(DataSet(name, class_names, train, test, source="texts"), allow_empty=allow_empty)
