"""pytest tests/envs/test_academia.py: the tools' replies and refusals in the original's shapes and
words, and that goals ask in words for their answers."""
import re
from collections import Counter

import pytest
from players import ask, first_of

from envs import academia
from envs.academia import VENUES, Env, graphs, only, partners
from envs.parts import tools


@pytest.fixture
def env():
    env = Env()
    env.reset(academia.TEST[0])
    env.loaded = {"PaperNet", "AuthorNet"}
    return env


def test_a_net_must_be_loaded_in_each_episode(env):
    title, name = next(iter(graphs()[0])), next(iter(graphs()[1]))
    calls = [("paperNodeCheck", {"node": title}, "PaperNet"),
             ("neighbourCheck", {"graph": "PaperNet", "node": title}, "PaperNet"),
             ("paperEdgeCheck", {"node1": title, "node2": title}, "PaperNet"),
             ("authorNodeCheck", {"node": name}, "AuthorNet"),
             ("neighbourCheck", {"graph": "AuthorNet", "node": name}, "AuthorNet"),
             ("authorEdgeCheck", {"node1": name, "node2": name}, "AuthorNet")]
    for episode in range(2):
        env.reset(academia.TEST[episode])
        for loaded in ((), ("PaperNet",), ("PaperNet", "AuthorNet")):       # each net by itself
            for net in loaded[-1:]:
                assert ask(env, f"load{net}") == f"{net} is loaded."
            for tool, arguments, net in calls:
                assert (ask(env, tool, **arguments) == f"Please load the {net} first.") == (
                    net not in loaded)


def test_a_paper_is_told_in_the_originals_shape(env):
    for title, paper in [*graphs()[0].items()][::40]:
        reply = ask(env, "paperNodeCheck", node=title)
        assert [*reply] == ["authors", "year", "venue", "n_citation", "keywords", "doc_type"]
        assert reply["authors"] == [author.name for author in paper.authors]
        assert reply["doc_type"] == VENUES[reply["venue"]] in ("Conference", "Journal")
        assert type(reply["year"]) is type(reply["n_citation"]) is int
        cited = ask(env, "neighbourCheck", graph="PaperNet", node=title)
        assert cited == [*paper.cites]
        for other in cited:
            assert ask(env, "paperEdgeCheck", node1=title, node2=other) == {}
            assert ask(env, "paperEdgeCheck", node1=other, node2=title) == \
                f"There is no edge between {other} and {title}."


def test_an_author_is_told_in_the_originals_shape(env):
    papers = graphs()[0]
    for name, author in [*graphs()[1].items()][::30]:
        reply = ask(env, "authorNodeCheck", node=name)
        written = [title for title, paper in papers.items() if author in paper.authors]
        assert reply == {"name": name, "org": author.org, "papers": written}
        others = ask(env, "neighbourCheck", graph="AuthorNet", node=name)
        assert {*others} == {x.name for title in written for x in papers[title].authors} - {name}
        for other in others:
            joint = ask(env, "authorEdgeCheck", node1=name, node2=other)["collaborative_papers"]
            assert joint == [title for title in written
                             if other in [x.name for x in papers[title].authors]]
            assert ask(env, "authorEdgeCheck", node1=other, node2=name)["collaborative_papers"] \
                == joint


def test_refusals_are_the_originals(env):
    one, two = "Nobody Holt", next(iter(graphs()[1]))
    nobody = f"There is no node named {one} in the AuthorNet."
    assert ask(env, "authorEdgeCheck", node1=two, node2=one) == nobody
    assert ask(env, "paperNodeCheck", node=two) == f"There is no node named {two} in the PaperNet."
    assert ask(env, "authorEdgeCheck", node1=two, node2=two) == \
        f"There is no edge between {two} and {two}."
    assert ask(env, "neighbourCheck", graph="paperNet", node=two) == \
        "AttributeError('str' object has no attribute 'neighbors')"
    assert len(ask(env, "paperNodeCheck", node="x" * 9000)) < 200


@pytest.mark.parametrize("counted, best", [
    (dict(a=1, b=2), "b"), (dict(a=2, b=2), None), (dict(a=0), None), (dict(a=3, b=2, c=2), "a")])
def test_only_is_the_one_most_frequent(counted, best):
    assert only(Counter(counted)) == best


# ---- the goals, read again: what a person would work out from their words and the graphs ----

def about_paper(paper, asked):
    """asked: the goal without the paper's title."""
    return first_of({
        "Who": [author.name for author in paper.authors], "year": paper.year,
        "rganizations": sorted({author.org for author in paper.authors}),
        " cite[?]|reference": len(paper.cites), "citations|cited": paper.citations,
        "keywords": [*paper.keywords], "Where|venue": paper.venue}, asked)


def about_two_papers(one, two, asked):
    if "hich" in asked:
        first = first_of({"has received more citations": one.citations > two.citations,
                          "was published first": one.year < two.year}, asked)
        return {True: one.title, False: two.title}.get(first)
    return "Yes" if first_of({
        "venue": one.venue == two.venue, "year": one.year == two.year,
        "type": VENUES[one.venue] == VENUES[two.venue],
        "keyword": {*one.keywords} & {*two.keywords},
        "author": {*one.authors} & {*two.authors}}, asked) else "No"


def about_author(name, asked):
    papers = [paper for paper in graphs()[0].values()
              if name in [author.name for author in paper.authors]]
    team = Counter(author.name for paper in papers for author in paper.authors)
    del team[name]
    orgs = {other: graphs()[1][other].org for other in (name, *team)}
    return first_of({
        "the same org": [other for other in team if orgs[other] == orgs[name]],
        "a different org": [other for other in team if orgs[other] != orgs[name]],
        "collaborations|whom": team.most_common(1)[0][0] if team else None,
        "affiliated|work[?]": orgs[name], "ow many": sum(paper.citations for paper in papers),
        "citations|cited": max(papers, key=lambda paper: paper.citations).title,
        "keyword": Counter(x for paper in papers for x in paper.keywords).most_common(1)[0][0],
        "venue|Where": Counter(paper.venue for paper in papers).most_common(1)[0][0]}, asked)


def about_two_authors(one, two, asked):
    joint = [paper for paper in graphs()[0].values() if {one, two} <= {
        author.name for author in paper.authors}]
    same = graphs()[1][one].org == graphs()[1][two].org
    return first_of({"organization": "Yes" if same else "No",
                     "collaborators|people": len({*partners(one)} & {*partners(two)}),
                     "citations": sum(paper.citations for paper in joint),
                     "papers": [paper.title for paper in joint]}, asked)


def test_goals_ask_in_words_for_what_is_answered():
    for task_id in [*academia.TRAIN, *academia.TEST][::2]:
        task = academia.task(task_id)
        papers = [paper for title, paper in graphs()[0].items()
                  if f"'{title}'" in task.goal or f'"{title}"' in task.goal]
        papers.sort(key=lambda paper: task.goal.find(paper.title))
        names = [name for name in graphs()[1] if name in task.goal]
        asked = re.sub("|".join(paper.title for paper in papers) or "-", "", task.goal)
        got = {(1, 0): about_paper, (2, 0): about_two_papers, (0, 1): about_author,
               (0, 2): about_two_authors}[len(papers), len(names)](*papers, *names, asked)
        assert tools.same(got, task.answer), task.goal
