"""What searchqa.py searches, and how a user's own files are read.

    library("", "").find("birthplace of Anton Velder")   -> the best passages of the encyclopedia
    library("FOLDER", "").find("...")                       of a user's FOLDER/corpus.jsonl
    library("FOLDER", "http://host:8000/retrieve")          of a Search-R1 retriever
    read_questions("FOLDER/train.jsonl")                 -> [Question, ...]
"""
import functools
import json
import re
import sqlite3
import threading
import urllib.request
from pathlib import Path

from envs.parts.knowledge import Passage, Question, encyclopedia

TOP = 3                     # passages found
MOST_WORDS = 32             # of a query; what stands behind them is not searched for
COMMON = 0.2                # a word in more than this share of the passages is not searched for
SECONDS = 30.0              # of waiting for a remote retriever
MOST_BYTES = 2**22          # of its reply


class Index:
    """BM25 over passages: SQLite's FTS5, in memory; a title counts twice."""

    def __init__(self, passages):
        self.passages, self.lock = passages, threading.Lock()
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, content='')")
        self.db.executemany("INSERT INTO pages (rowid, title, text) VALUES (?, ?, ?)",
                            ((n, p.title, p.text) for n, p in enumerate(passages)))
        self.db.execute("CREATE VIRTUAL TABLE words USING fts5vocab(pages, row)")
        most = min(COMMON * len(passages), 20_000)      # and in no more passages than this
        self.common = {word for word, in self.db.execute(
            "SELECT term FROM words WHERE doc > ?", (most,))}

    def find(self, query):
        """The TOP passages that share words with the query, best first. Whatever the query holds,
        FTS5 gets single words in quotes, joined by OR: none of its own syntax comes through."""
        words = dict.fromkeys(re.findall(r"[^\W_]+", query[:10_000].lower()))
        words = [word for word in words if word not in self.common] or list(words)
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words[:MOST_WORDS])
        with self.lock:
            found = self.db.execute(
                "SELECT rowid FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 2.0, 1.0), rowid "
                "LIMIT ?", (match, TOP)).fetchall()
        return [self.passages[n] for n, in found]


@functools.cache
def check_fts5():
    """RuntimeError: this Python's SQLite was built without full-text search."""
    try:
        sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE pages USING fts5(text)")
    except sqlite3.OperationalError as missing:
        raise RuntimeError(f"searchqa needs a Python whose sqlite3 has FTS5 ({missing})") from None


class Remote:
    """A retriever elsewhere that speaks as Search-R1's: {"queries": [text], "topk": 3,
    "return_scores": true} -> {"result": [[{"document": {"contents": "title\\ntext"}}, ...]]}."""

    def __init__(self, url):
        self.url = url

    def find(self, query):
        """The passages. RuntimeError: the retriever does not answer, or answers otherwise."""
        asked = dict(queries=[query[:10_000]], topk=TOP, return_scores=True)
        try:
            request = urllib.request.Request(self.url, json.dumps(asked).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=SECONDS) as reply:
                result = json.loads(reply.read(MOST_BYTES))["result"][0]
            return [passage_of(item["document"]["contents"]) for item in result[:TOP]]
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            raise RuntimeError(f"searchqa: {self.url} is no Search-R1 retriever, or it does not "
                               f"answer: {problem!r}; see NANO_SEARCHQA_URL") from problem


def passage_of(contents):
    """The Passage of a corpus' "contents": the title, a line end, the text."""
    title, _, text = contents.partition("\n")
    return Passage(title, text)


@functools.cache
def library(folder, url):
    """What is searched, made once in a process: the encyclopedia, a user's corpus, or a URL."""
    if url:
        return Remote(url)
    return Index(read_corpus(Path(folder) / "corpus.jsonl") if folder else encyclopedia().passages)


# ---- a user's own questions and corpus ----------------------------------------------------------

def read_lines(path):
    """(where, object) for each line of a jsonl file. ValueError: file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                where = f"searchqa: {path}, line {number}"
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError) as problem:
                    raise ValueError(f"{where}: no JSON ({problem}); expected an object") from None
                if type(entry) is not dict:
                    raise ValueError(f"{where}: {line.strip()[:60]!r}; expected an object")
                yield where, entry
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"searchqa: cannot read {path}: {problem}") from None


def is_text(value):
    """Whether it is a str with something in it, and without half a character."""
    return type(value) is str and value.strip() and value == value.encode(errors="replace").decode()


def read_corpus(path):
    """The passages of a corpus as Search-R1 has it: {"id": "0", "contents": "title\\ntext"}."""
    passages = []
    for where, entry in read_lines(path):
        if not is_text(entry.get("contents")):
            raise ValueError(f"{where}: contents is {str(entry.get('contents'))[:60]!r}; expected "
                             "a text: the title, a line end, the passage")
        passages.append(passage_of(entry["contents"]))
    if not passages:
        raise ValueError(f"searchqa: {path} holds no passage")
    return passages


def read_questions(path):
    """The questions of a file as FlashRAG has it: {"question": text, "golden_answers": [text,
    ...]}; "data_source", if it is there, is the family."""
    questions = []
    for where, entry in read_lines(path):
        text, golds = entry.get("question"), entry.get("golden_answers")
        family_name = entry.get("data_source", "own")
        for field, value, fits, expected in (
                ("question", text, is_text(text), "a text"),
                ("golden_answers", golds, type(golds) is list and golds
                 and all(map(is_text, golds)), "a list of texts"),
                ("data_source", family_name, is_text(family_name), "a text")):
            if not fits:
                raise ValueError(f"{where}: {field} is {str(value)[:60]!r}; expected {expected}")
        questions.append(Question(text.strip(), tuple(golds), family=family_name))
    if not questions:
        raise ValueError(f"searchqa: {path} holds no question")
    return questions
