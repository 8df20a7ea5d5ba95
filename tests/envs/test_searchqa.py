"""pytest tests/envs/test_searchqa.py: the world, its questions, the search, the game, a user's
data.

The game against the sentences of AgentGym's server, the search against BM25 written out, what the
passages say against what the questions ask, the remote retriever against a server here.
"""
import json
import random
import re
import zlib
from collections import Counter

import pytest
from fakes import canned, serving
from players import bm25, play, solved, wire

from chat import make_tokenizer
from client import EnvClient, Reset
from env_server import local_server
from envs import open_env, searchqa, searchqa_small
from envs.parts import knowledge, retrieval
from envs.parts.knowledge import Passage, Thing, encyclopedia, relations, said
from envs.parts.retrieval import Index, Remote, read_corpus, read_questions
from envs.parts.suites import COMPOSITION, suite_tasks
from envs.searchqa import FAMILIES, TEST, TRAIN, draw, family, first_tag, normalised


def some(name, split, count=20):
    """The first ids of a family."""
    return [task for task in split if family(task) == name][:count]


# ---- the world ----------------------------------------------------------------------------------

def test_make_passages_states_every_fact_in_one_passage_in_words():
    stated = Counter(fact for passage in encyclopedia().passages for fact in passage.facts)
    assert set(stated.values()) == {1}
    assert stated.keys() == {(thing, name) for thing in encyclopedia().things
                             for name in thing.facts}
    for title, text, facts in encyclopedia().passages:
        for thing, name in facts:
            assert title == thing.title and thing.name.split()[-1] in text
            assert any(verb.format(y=said(thing.facts[name])) in text
                       for verb in relations()[thing.kind][name].verbs)


def test_facts_fit_together():
    def year(thing, name):
        return int(thing.facts[name])
    for thing in encyclopedia().things:
        facts = thing.facts
        if "father" in facts:
            assert 24 <= year(thing, "birth") - year(facts["father"], "birth") <= 45
            assert facts["father"].name.split()[1] == thing.name.split()[1]
        if "spouse" in facts:
            assert facts["spouse"].facts["spouse"] is thing
        for maker, made in dict(author="year", director="year", painter="year", architect="opened",
                                captain="launched", singer="formed", founder="founded").items():
            if maker in facts and made in facts:
                assert 24 <= year(thing, made) - year(facts[maker], "birth") < 70
                assert year(thing, made) < int(facts[maker].facts.get("death", 2020))


# ---- questions ----------------------------------------------------------------------------------

def test_golds_of_takes_a_number_without_its_unit_and_a_name_without_its_sort():
    def answers(value):
        return set(knowledge.golds_of(value))
    assert answers("612 km") == {"612 km", "612"} and answers("412,305") == {"412,305"}
    assert answers(Thing("river", "river", "River Alhava")) == {"River Alhava", "Alhava"}
    assert answers(Thing("person", "actor", "Ada Elder", ("Ada Cor Elder",))) == {
        "Ada Elder", "Ada Cor Elder"}


def test_splits_hold_what_the_suite_and_training_need():
    counts = COMPOSITION["searchqa"]
    assert all(len(some(name, TEST, 10**6)) >= count for name, count in counts.items())
    assert all(len(some(name, TRAIN, 10**6)) == 2000 for name in FAMILIES)
    tasks = suite_tasks(searchqa, 400)
    assert Counter(map(family, tasks)) == counts and len(set(tasks)) == 400
    assert Counter(map(family, TRAIN[:70])) == dict.fromkeys(FAMILIES, 10)  # a fair sample first


@pytest.mark.parametrize("name", FAMILIES)
def test_draw_asks_in_each_split_about_other_things(name):
    asked = {}
    for split in (TRAIN, TEST):
        asked[split] = {thing for task in some(name, split) for thing, _ in draw(task).chains}
    assert not asked[TRAIN] & asked[TEST] and all(len(things) > 15 for things in asked.values())
    for split in (TRAIN, TEST):             # so it is with all the tasks that were not drawn
        assert {zlib.crc32(thing.title.encode()) % 5 == 0 for thing in asked[split]} \
            == {split is TEST}


@pytest.mark.parametrize("name, hops", [
    ("nq", {1}), ("popqa", {1}), ("hotpotqa", {1, 2}), ("2wikimultihopqa", {1, 2}),
    ("musique", {2, 3, 4}), ("bamboogle", {1, 2})])
def test_draw_leads_over_the_hops_of_its_family(name, hops):
    questions = [draw(task) for task in some(name, TRAIN, 40)]
    assert {len(names) for q in questions for _, names in q.chains} == hops
    for question in questions:
        for thing, names in question.chains:
            assert thing.name.lower() in question.text.lower()
            value = thing
            for step in names:
                value = value.facts[step]
            if len(question.chains) == 1:
                assert question.golds[0] == getattr(value, "name", value)
                # and it is not told: some schools are named after their city
                assert question.golds[0].lower() not in question.text.lower()


@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa"])
def test_ask_comparison_is_answered_by_the_greater_or_the_first(name):
    seen = set()
    for question in map(draw, some(name, TRAIN, 60)):
        if len(question.chains) < 2:
            continue
        values = []
        for thing, names in question.chains:
            for step in names:
                thing = thing.facts[step]
            values.append(int(re.sub("[^0-9]", "", thing)))
        words = re.search(r" (first|last|more inhabitants|higher|longer), ", question.text)[1]
        one, two = (thing.name for thing, _ in question.chains)
        assert question.text.endswith(f", {one} or {two}?")
        assert (question.golds[0] == one) == ((values[0] < values[1]) == (words == "first"))
        seen.add(words)
    assert {"first", "last"} <= seen


def test_ask_years_is_answered_by_the_difference():
    for question in map(draw, some("bamboogle", TRAIN, 40)):
        (thing, (hop, far)), (same, (near,)) = question.chains
        then, now = int(thing.facts[hop].facts[far]), int(thing.facts[near])
        years = abs(now - then)
        assert thing is same and question.golds[:2] == (
            str(years), "1 year" if years == 1 else f"{years} years")
        assert thing.kind != "person" or question.text.endswith(f" of {thing.mention}?")
        if question.text.startswith("How old was"):
            assert far == "birth" and now > then


def test_ask_triviaqa_describes_one_thing_only():
    for question in map(draw, some("triviaqa", TRAIN)):
        (thing, (one,)), (same, (two,)) = question.chains
        assert thing is same and question.hidden and thing.name not in question.text
        assert f"{thing.noun} {'that' if thing.kind == 'person' else 'who'} " not in question.text
        described = [x for x in encyclopedia().things if x.noun == thing.noun
                     and all(x.facts.get(name) == thing.facts[name] for name in (one, two))]
        assert described == [thing] and question.golds[0] == thing.name
        assert not any({(thing, one), (thing, two)} <= {*p.facts} for p in encyclopedia().passages)


# ---- the search ---------------------------------------------------------------------------------

def test_index_finds_what_bm25_ranks_first():
    rng, letters = random.Random(0), [a + b for a in "bcdfg" for b in "aeiou"]
    passages = [Passage(" ".join(rng.choices(letters, k=2)),
                        " ".join(rng.choices(letters, k=rng.randrange(4, 20))))
                for _ in range(60)]
    index = Index(passages)
    index.common = set()
    docs = [(Counter(f"{page.title} {page.title} {page.text}".split()),     # a title counts twice,
             len(f"{page.title} {page.text}".split())) for page in passages]    # its size once
    for _ in range(50):
        words = rng.sample(letters, rng.randrange(1, 4))
        assert index.find(" ".join(words)) == [passages[i] for i in bm25(docs, words)[:3]]


SYNTAX = {      # a query -> the words that it is searched for
    'NEAR("silent orchard", 2)': "near silent orchard 2", '"silent orchard': "silent orchard",
    "orchard*": "orchard", "{title text}: orchard": "title text orchard", "- orchard": "orchard",
    "((orchard": "orchard", "NOT orchard AND": "not orchard and", "^orchard + silent":
    "orchard silent", "orchard'; DROP TABLE pages; --": "orchard drop table pages",
    "orchard\x00silent": "orchard silent", "orchard \ud800": "orchard",
    "orchard_silent": "orchard silent", "%orchard% _": "orchard", "ORCHARD": "orchard"}


@pytest.mark.parametrize("query", SYNTAX)
def test_find_takes_fts5_syntax_for_plain_words(query):
    index = retrieval.library("", "")
    found = index.find(query)
    assert found == index.find(SYNTAX[query]) and len(found) == 3
    assert index.find("silent orchard")       # the table is still there


def test_find_of_a_huge_query_looks_for_its_first_words_only():
    index, words = retrieval.library("", ""), [f"w{i}" for i in range(100_000)]
    assert index.find(" ".join(["orchard", *words])) == index.find("orchard") != []
    words.insert(retrieval.MOST_WORDS - 1, "orchard")
    assert index.find(" ".join(words)) == index.find("orchard")
    assert index.find(" ".join(["wx", *words])) == []


# ---- the game -----------------------------------------------------------------------------------

@pytest.mark.parametrize("text, plain", [
    ("The  Silent, Orchard!", "silent orchard"), ("An apple a day", "apple day"),
    ("412,305 km", "412305 km"), ("Theatre", "theatre"), ("O'Neill-Smith\n", "oneillsmith")])
def test_normalised_as_squad_does(text, plain):
    assert normalised(text) == plain


def test_first_tag_is_what_the_originals_expression_finds():
    rng = random.Random(0)
    parts = ["<search>", "</search>", "<answer>", "</answer>", " x ", "y\n", "<think>", "<"]
    for _ in range(3000):
        reply = "".join(rng.choices(parts, k=rng.randrange(1, 9)))
        match = re.search(r"<(search|answer)>(.*?)</\1>", reply, re.DOTALL)
        assert first_tag(reply) == ((match[1], match[2].strip()) if match else ("", "")), reply
    # which takes minutes for these: it starts anew at every tag
    assert first_tag("<search>" * 200_000) == ("", "")
    assert first_tag("<answer>" * 100_000 + "</search>" * 100_000) == ("", "")


def test_search_shows_three_passages_as_the_original_does():
    env = searchqa.Env()
    assert env.reset(51713) == f"Question: {draw(51713).text}"
    thing = draw(51713).chains[0][0]
    reply = f"<think>I look for it.</think>\n<search>\n{thing.title} </search>"
    observation, reward, done, info = env.step(reply)
    assert (reward, done, info) == (0, False, {"success": False, "valid": True, "score": 0})
    assert env.prompted.endswith(f"process every time.\n\n Question: {draw(51713).text}")
    docs = re.fullmatch(r"<information>Doc 1\(Title: (.+)\) (.+)\nDoc 2\(Title: (.+)\) (.+)\n"
                        r"Doc 3\(Title: (.+)\) (.+)</information>", observation)
    assert docs[1] == thing.title and thing.name.split()[-1] in docs[2]


def test_act_answers_with_the_originals_sentences():
    env, right = searchqa.Env(), f"<answer> the {draw(0).golds[0].upper()}. </answer>"
    env.reset(0)
    assert env.step("I do not know.")[0] == (
        "Your previous action is invalid. If you want to search, you should put the query between "
        "<search> and </search>. If you want to give the final answer, you should put the answer "
        "between <answer> and </answer>. Please try again.")
    assert env.step(right) == (
        "Congratulations! You have answered the question correctly.", 1.0, True,
        {"success": True, "valid": True, "score": 1.0})


@pytest.mark.parametrize("retry, variable", [(None, ""), (None, "0"), (None, "1"), (True, "")])
def test_act_ends_at_the_first_answer_unless_it_may_try_again(monkeypatch, retry, variable):
    monkeypatch.setenv("NANO_SEARCHQA_RETRY", variable)
    env, again = searchqa.Env(retry), retry or variable == "1"
    env.reset(0)
    said = "Sorry, your answer is incorrect." + " Please try again." * again
    assert env.step("<answer> nobody </answer>")[:3] == (said, 0.0, not again)
    assert not again or env.step(f"<answer>{draw(0).golds[0]}</answer>")[1:3] == (1.0, True)


# ---- the expert ---------------------------------------------------------------------------------

@pytest.mark.parametrize("name", FAMILIES)
def test_expert_thinks_and_says_only_what_it_has_read(name):
    """Names in its thoughts, queries and answers stand in the question or in a passage before."""
    env = searchqa.Env()

    def names(text):
        return {word.lower() for word in re.findall(r"\b[A-Z][a-z]+|[0-9]+", text)}
    for task in some(name, TEST):
        shown, done = env.reset(task).lower(), False
        while not done:
            thought, action = env.expert()
            facts, _, result = thought.partition(" So it is ")
            kind, content = first_tag(action)
            if name == "bamboogle" and kind == "answer":            # a difference stands nowhere
                content = ""
            said = names(re.sub(r"(^|\. )\w+", "", facts)) | names(content)
            assert all(word in shown for word in said), (task, thought, action)
            observation, _, done, info = env.step(action)
            shown += observation.lower()
        assert info["success"] and draw(task).golds[0] in thought
        assert bool(result) == (name == "bamboogle") or len(draw(task).chains) == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_expert_succeeds_after_detours_and_wrong_answers(name):
    env, rng = searchqa.Env(retry=True), random.Random(name)
    for task in some(name, TEST, 12):
        env.reset(task)
        for _ in range(rng.randrange(1, 8)):
            if not env.done:
                env.step(rng.choice([env.random_action(rng), "<search>", env.expert()[1]]))
        assert env.done or solved(env, most=10), task


# ---- a user's own data --------------------------------------------------------------------------

CORPUS = [{"id": "0", "contents": '"Ada Lovelace"\nAda Lovelace was born in London in 1815.'},
          {"id": "1", "contents": '"Charles Babbage"\nCharles Babbage was an engineer.'},
          {"id": "2", "contents": "\"London\"\nLondon is a city on the Thames."}]
QUESTIONS = {
    "train": [{"id": "train_0", "question": "where was Ada Lovelace born", "golden_answers":
               ["London", "London, England"], "data_source": "nq"},
              {"question": "which river runs through London", "golden_answers": ["Thames"]}],
    "test": [{"question": "who was an engineer?", "golden_answers": ["Charles Babbage"]}]}


def write(folder, **files):
    for name, entries in files.items():
        text = "".join(entry if isinstance(entry, str) else json.dumps(entry) + "\n"
                       for entry in entries)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def test_use_plays_the_questions_of_a_folder_here_and_in_servers_started_here(tmp_path):
    write(tmp_path, corpus=CORPUS, **QUESTIONS)
    module = open_env("searchqa", str(tmp_path))
    assert (list(module.TRAIN), list(module.TEST), module.FAMILIES) == ([0, 1], [2], ("nq", "own"))
    env = module.Env()
    assert env.reset(0) == "Question: where was Ada Lovelace born"
    observation = env.step("<search>Lovelace born</search>")[0]
    assert observation == ('<information>Doc 1(Title: "Ada Lovelace") Ada Lovelace was born in '
                           "London in 1815.</information>")
    assert env.step("<answer>london england</answer>")[1] == 1
    assert [len(play(env, task)) for task in range(3)] == [2, 2, 2]
    with pytest.raises(ValueError, match="tasks are 0..2"):
        env.reset(3)
    with local_server("searchqa", data=str(tmp_path)) as url:
        reply, = EnvClient(url, "searchqa").answer([(None, Reset(2))])
        assert reply.observation == "Question: who was an engineer?"


def test_use_cuts_long_passages_and_searches_once_for_a_long_question(tmp_path):
    long = {"question": "who? " * 200, "golden_answers": ["me"]}
    words = " ".join(f"w{i}" for i in range(400))
    write(tmp_path, corpus=[{"id": "0", "contents": f"who\n{words}"}], train=[long],
          test=QUESTIONS["test"])
    env = open_env("searchqa", str(tmp_path)).Env()
    episode = play(env, 0)
    assert len(episode) == 2 and episode[-1][-1]["success"]
    assert episode[0][1].split()[-1] == f"w{searchqa.PASSAGE_WORDS - 1}</information>"


@pytest.mark.parametrize("read, line, words", [
    (read_corpus, "[1]", "line 2: .*expected an object"),
    (read_corpus, r'{"contents": "half of \ud83d"}', "line 2: contents is 'half of"),
    (read_questions, '{"question": " ", "golden_answers": ["a"]}', "line 2: question is ' '"),
    (read_questions, '{"question": "q", "golden_answers": []}', "line 2: golden_answers is .*list"),
    (read_questions, '{"question": "q", "golden_answers": [1]}', "line 2: golden_answers is"),
    (read_questions, '{"question": "q", "golden_answers": ["a"], "data_source": 1}',
     "line 2: data_source is '1'"),
    (read_questions, "[" * 100_000, "line 2: no JSON")])
def test_read_names_file_line_and_field(tmp_path, read, line, words):
    good = CORPUS[0] if read is read_corpus else QUESTIONS["test"][0]
    write(tmp_path, file=[good, line])
    with pytest.raises(ValueError, match=f"^searchqa: .*file.jsonl, {words}") as refusal:
        read(tmp_path / "file.jsonl")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("files, words", [
    (dict(QUESTIONS), "has no corpus.jsonl; add it, or give the URL"),
    (dict(QUESTIONS, corpus=CORPUS, test=QUESTIONS["train"]), "both ask 'where was Ada"),
    (dict(QUESTIONS, corpus=CORPUS, test=[]), "test.jsonl holds no question"),
    (dict(train=QUESTIONS["train"], corpus=CORPUS), "cannot read .*test.jsonl")])
def test_use_refuses_a_folder_in_a_sentence(tmp_path, files, words):
    with pytest.raises(ValueError, match=f"^searchqa: .*{words}"):
        searchqa.use(write(tmp_path, **files))


# ---- a remote retriever -------------------------------------------------------------------------

# As Search-R1's retrieval_server.py answers {"queries": [...], "topk": 3, "return_scores": true}.
RESULT = {"result": [[{"document": document, "score": 0.8 - i / 10}
                      for i, document in enumerate([*CORPUS, CORPUS[0]])]]}     # one too many


def test_remote_speaks_as_search_r1s_clients_do():
    requests = []

    def answer(method, path, body, _):
        requests.append((method, path, json.loads(body)))
        return 200, json.dumps(RESULT)
    with serving(canned(answer)) as url:
        found = Remote(f"{url}/retrieve").find("Ada Lovelace (born)")
    assert requests == [("POST", "/retrieve", {
        "queries": ["Ada Lovelace (born)"], "topk": 3, "return_scores": True})]
    assert [p.title for p in found] == ['"Ada Lovelace"', '"Charles Babbage"', '"London"']
    assert found[2].text == "London is a city on the Thames."


@pytest.mark.parametrize("answer", [
    (500, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b'{"result": []}'),
    (200, b'{"result": [[{"document": {"contents": null}}]]}')])
def test_remote_that_fails_breaks_its_session_and_no_reward_is_given(answer, tmp_path,
                                                                    monkeypatch, capfd):
    with serving(canned(lambda *_: answer)) as url:
        with pytest.raises(RuntimeError, match=f"^searchqa: {url} is no Search-R1 retriever"):
            Remote(url).find("x")
        monkeypatch.setenv("NANO_SEARCHQA_URL", url)
        write(tmp_path, **QUESTIONS)        # needs no corpus of its own then
        ask = wire("searchqa", str(tmp_path))
        ask("/resets", {"items": [{"task": 0}, {"task": 1}]})
        broken, good = ask("/steps", {"items": [
            dict(id=0, action="<search>x</search>"),
            dict(id=1, action="<answer>Thames</answer>")]})["items"]
    assert broken["status"] == 500 and "reward" not in broken and url in broken["error"]
    assert good["reward"] == 1


def test_env_refuses_a_retriever_without_questions(monkeypatch):
    monkeypatch.setenv("NANO_SEARCHQA_URL", "http://127.0.0.1:9/retrieve")
    with pytest.raises(ValueError, match="NANO_SEARCHQA_URL is set, but no questions"):
        open_env("searchqa")


# ---- searchqa_small -----------------------------------------------------------------------------

def test_small_questions_are_answered_by_following_the_passages():
    """Read here by their words, from the name that the question holds; the answer is not in it."""
    env = searchqa_small.Env()
    for task in [*searchqa_small.TRAIN[:100], *searchqa_small.TEST]:
        told = env.reset(task)
        asked = re.search(r"\b([A-Z]\w+)( born)?\?$", told)[1]
        towns, teachers = {}, {}
        for name, passage in env.passages.items():
            assert passage.title == name and passage.text.startswith(f"{name} was born in ")
            towns[name] = re.search(r"born in (\w+)\.", passage.text)[1]
            if " is " in passage.text:
                teachers[name] = re.search(rf"The teacher of {name} is (\w+)\.$", passage.text)[1]
        for _ in range(told.count("teacher of")):
            asked = teachers[asked]
        answer = towns[asked] if told.endswith("born?") else asked
        hops = told.count("teacher of") + told.endswith("born?")
        turns, wanted = play(env, task), ("one hop", "two hops")[hops - 1]
        assert turns[-1][0] == f"<answer> {answer} </answer>" and turns[-1][2] == 1
        assert len(turns) == hops + 1 and searchqa_small.family(task) == wanted
        assert answer not in told.split()


@pytest.mark.parametrize("query, title", [
    ("Otis", "Otis"), ("the town of Otis and Ines", "Otis"), ("otis", None), ("", None),
    ("born in Oslo", None)])
def test_small_search_finds_the_first_name(query, title):
    env = searchqa_small.Env()
    env.reset(0)
    env.passages = {name: Passage(name, f"{name} was born.") for name in ("Ines", "Otis")}
    observation, *_ = env.step(f"<search> {query} </search>")
    assert observation == ("<information>No passage has any of these words.</information>"
                           if title is None else
                           f"<information>Doc 1(Title: {title}) {title} was born.</information>")


def test_small_names_are_one_token_wherever_they_are_copied():
    env = searchqa_small.Env()
    texts = [text for task in range(200) for action, observation, *_ in play(env, task)
             for text in (action, observation)]
    tokenizer = make_tokenizer(texts, 600)
    for task in searchqa_small.TEST[:100]:
        seen = tokenizer.tokenize(env.reset(task))
        for action, observation, *_ in play(env, task):
            copied = f"\u0120{action.split()[1]}"           # with the blank before it
            assert copied in seen and copied in tokenizer.tokenize(action)
            seen += tokenizer.tokenize(observation)
