"""Texts, turned into token ids with a mask by a tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._arguments import instance, positive
from ncsam._errors import bad_value, need
from ncsam._text import shortened
from ncsam.data.loading.sampling import BatchRequest
from ncsam.data.modalities.base import BatchTransform, Modality, Store, check_counts
from ncsam.data.tables.columns import TABLE_SUFFIXES, complete, found_name, read_columns
from ncsam.data.types import DataSet, Inputs

#: Tokens of a text that are kept; what follows is cut off.
MAX_LENGTH = 256
#: Words of a vocabulary, the most frequent ones.
MAX_WORDS = 20_000
_PAD, _UNKNOWN, _FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
_SHOWN = 200  # characters of a preview
_LONGEST = 10**6  # tokens, where a tokenizer names no limit


class Tokenizer(Protocol):
    """Texts to numbers. `size` is how many there may be, `pad` the one that fills up short sequences."""

    size: int
    pad: int

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]: ...

    def state(self) -> dict[str, Any]: ...


class Words:
    """A plain vocabulary: lower-case words and single signs. 0 is padding, 1 any word that is not in it.

    Args:
        words: In lower case; the first gets number 2.
    """

    pad = _PAD

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.size = _FIRST_WORD + len(self.words)
        self._number = {word: number for number, word in enumerate(self.words, start=_FIRST_WORD)}

    @classmethod
    def of(cls, texts: Iterable[str], most: int = MAX_WORDS) -> Words:
        """The most frequent words of some texts; of equally frequent ones, the first in the alphabet.

        Args:
            texts: Of the training split.
            most: Words in the vocabulary, at most.
        """
        counts = Counter(word for text in texts for word in cls.split(text))
        return cls(sorted(counts, key=lambda word: (-counts[word], word))[:most])

    @staticmethod
    def split(text: str) -> list[str]:
        """Cut a text into lower-case words and single punctuation marks.

        Args:
            text: Any text.
        """
        return _WORD.findall(text.lower())

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The token ids of each text, without padding.

        Args:
            texts: Any texts.
            length: Tokens of a text at most; the rest is cut off.
        """
        return [[self._number.get(word, _UNKNOWN) for word in self.split(text)[:length]] for text in texts]

    def state(self) -> dict[str, Any]:
        return {"words": list(self.words)}


class Pretrained:
    """A tokenizer of `transformers`: the name of a published one, or a folder that holds one.

    Args:
        source: The name or folder.
        download: Whether a published one that is not on this machine may be downloaded.
    """

    def __init__(self, source: str, *, download: bool = True) -> None:
        library = need("transformers", "transformers", f"the tokenizer {source!r}")
        self.source = source
        options = {"trust_remote_code": False, "local_files_only": not download}
        try:
            self._tokenizer: Any = library.AutoTokenizer.from_pretrained(source, **options)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise bad_value("tokenizer", source, f"a tokenizer that transformers can open: {reason}") from error
        self.size = len(self._tokenizer)
        self.pad = self._tokenizer.pad_token_id or 0
        #: The most tokens that its model can read.
        self.longest = int(min(self._tokenizer.model_max_length, _LONGEST))

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The token ids of each text, special tokens included, without padding.

        Args:
            texts: Any texts.
            length: Tokens of a text at most; the rest is cut off.
        """
        found = self._tokenizer(list(texts), truncation=True, max_length=length, padding=False)
        ids: list[list[int]] = found["input_ids"]
        return ids

    def state(self) -> dict[str, Any]:
        return {"transformers": self.source}


def tokenizer_for(name: str, texts: Iterable[str], max_words: int = MAX_WORDS) -> Tokenizer:
    """By its name: "words" makes a vocabulary of the texts, anything else is one of `transformers`.

    Args:
        name: "words", or the name or folder of a tokenizer, which may be downloaded.
        texts: Of the training split; used by "words" alone.
        max_words: Words of that vocabulary, at most.
    """
    positive("max_words", max_words)
    instance("tokenizer", name, str, "'words', or the name of a tokenizer of transformers")
    return Words.of(texts, max_words) if name == "words" else Pretrained(name)


def tokenizer_from(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `state()` described.

    Args:
        state: With the key `words` or `transformers`; nothing is downloaded.
    """
    return Words(state["words"]) if "words" in state else Pretrained(state["transformers"], download=False)


class TextList(Sequence[str]):
    """Texts with the tokenizer that is to read them; `length` is the most tokens of each.

    Args:
        texts: One per sample.
        tokenizer: Shared by all splits of a dataset.
        length: What follows is cut off.
        column: The table's column that the texts were read from; empty if none.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, length: int = MAX_LENGTH, column: str = "") -> None:
        self.texts = list(texts)
        self.tokenizer = tokenizer
        self.length = positive("max_length", length)
        self.column = column

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return TextList(self.texts[index], self.tokenizer, self.length, self.column)
        return self.texts[index]

    def take(self, index: npt.NDArray[np.int64]) -> TextList:
        """The texts at `index`, in that order.

        Args:
            index: Positions among these texts.
        """
        return TextList([self.texts[i] for i in index], self.tokenizer, self.length, self.column)


@dataclass(frozen=True)
class Texts(Modality):
    """Texts as `input_ids` and `attention_mask`, both (batch, length), as long as the longest text of the batch.

    The mask is true where there is a token. `vocabulary` is the number of different
    tokens, `length` the most of a text, `column` the table's that was read.

    Attributes:
        tokenizer: What `tokenizer_from` makes it again from.
        pad: The token id that fills up short texts.
        vocabulary: Padding and unknown words included.
        length: What follows is cut off.
        column: Empty where the texts did not come from a table.
    """

    tokenizer: Mapping[str, Any]
    pad: int
    vocabulary: int
    length: int
    column: str

    name: ClassVar[str] = "texts"
    axes: ClassVar[Mapping[int, str]] = {0: "batch", 1: "length"}
    prepared: ClassVar[str] = (
        "texts cut into tokens: input_ids (batch, length), padded at the end, and attention_mask, true for tokens"
    )

    def __post_init__(self) -> None:
        check_counts(vocabulary=(self.vocabulary,), length=(self.length,), pad=(self.pad + 1,))
        if not isinstance(self.column, str) or self.tokenizer.keys() not in ({"words"}, {"transformers"}):
            raise bad_value("tokenizer", sorted(self.tokenizer), "'words' or 'transformers'")

    @classmethod
    def holds(cls, inputs: Inputs) -> bool:
        return isinstance(inputs, TextList)

    @classmethod
    def of(cls, dataset: DataSet) -> Texts:
        texts = dataset.train.inputs
        assert isinstance(texts, TextList)
        tokenizer = texts.tokenizer
        return cls(tokenizer.state(), tokenizer.pad, tokenizer.size, texts.length, texts.column)

    @classmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        return TextStore(inputs, device)

    def input_sizes(self) -> dict[str, int]:
        return {"tokens": self.vocabulary}

    @property
    def mixable(self) -> bool:
        return False

    def example(self, count: int = 2) -> dict[str, Tensor]:
        length = min(8, self.length)
        ids = torch.randint(0, self.vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
        mask = torch.arange(length) < torch.arange(length, length - count, -1).clamp(min=1)[:, None]
        return {"input_ids": torch.where(mask, ids, self.pad), "attention_mask": mask}

    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        """Tables with a column of texts, and .txt files with one text on each line.

        Args:
            paths: `.txt`, `.csv`, `.tsv` and `.parquet` files.

        Raises:
            UsageError: A file is of another type.
            ValueError: A table has no column of texts, or a row has none.
        """
        names: list[str] = []
        texts: list[str] = []
        for path in paths:
            found = self._texts(path)
            names += [f"{path}[{row}]" for row in range(len(found))]
            texts += found
        return names, TextList(texts, tokenizer_from(self.tokenizer), self.length, self.column)

    def _texts(self, path: Path) -> list[str]:
        suffix = path.suffix.lower()
        if suffix == ".txt":
            return path.read_text(encoding="utf-8").splitlines()
        if suffix not in TABLE_SUFFIXES:
            raise bad_value("inputs", str(path), f"a file of texts, which ends in .txt, {', '.join(TABLE_SUFFIXES)}")
        table = read_columns(path)
        column = self.column if self.column in table else found_name(table, "text", None, path)
        if column is None:
            wanted = repr(self.column or "text")
            raise ValueError(f"{path} has no column {wanted}, the texts of this run; columns: {', '.join(table)}")
        return [str(text) for text in complete(table, column, "text", path)]

    def preview(self, inputs: Inputs, index: int) -> str:
        return shortened(inputs[index], _SHOWN)

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        assert isinstance(inputs, TextList)
        return f"texts, {inputs.tokenizer.size:,} tokens, at most {inputs.length} of them, in memory"


class TextStore(Store):
    """The tokens of all texts in one row on the device, and where each text begins.

    Args:
        inputs: The texts, which are tokenized here, all at once.
        device: Where the tokens are kept.
    """

    kind = "texts"

    def __init__(self, inputs: TextList, device: torch.device) -> None:
        encoded = inputs.tokenizer.encode(inputs.texts, inputs.length)
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        self.pad = inputs.tokenizer.pad
        self.row_lengths = lengths
        self.lengths = torch.from_numpy(lengths).to(device)
        self.starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]])).to(device)
        flat = np.fromiter((number for ids in encoded for number in ids), dtype=np.int64, count=int(lengths.sum()))
        # one more, so that a place to fetch from exists even where no text has a token
        self.flat = torch.from_numpy(np.append(flat, self.pad)).to(device)

    def render(
        self, requests: Iterable[BatchRequest], transform: BatchTransform
    ) -> Iterator[tuple[dict[str, Tensor], ...]]:
        for request in requests:
            index = torch.from_numpy(request.index).to(self.flat.device)
            lengths = self.lengths[index]
            places = torch.arange(max(1, int(lengths.max())), device=self.flat.device)
            mask = places < lengths[:, None]
            where = (self.starts[index][:, None] + places).masked_fill_(~mask, len(self.flat) - 1)
            ids = self.flat[where]
            yield tuple({"input_ids": ids.clone(), "attention_mask": mask.clone()} for _ in transform.views)
