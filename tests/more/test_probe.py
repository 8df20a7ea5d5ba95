"""pytest tests/more/test_probe.py: recipes/probe.py, its equations, its figures and its
warnings."""
import math
import statistics
from dataclasses import replace

import pytest
import torch
from fakes import config, started
from transformers import AutoModelForCausalLM

import panel
import parallel
import train
from recipes import probe as recipe
from recipes.probe import mutual_information, probe, retrieval_accuracy


def test_mutual_information_by_hand():
    # p(z_i | x_i) = 0.8, p(z_i | x_other) = 0.2: the marginal is 0.5
    scores, own = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).log(), torch.tensor([0, 1])
    assert mutual_information(scores, own) == pytest.approx(math.log(0.8 / 0.5), abs=1e-6)
    assert mutual_information(scores, 1 - own) == pytest.approx(math.log(0.4), abs=1e-6)
    assert retrieval_accuracy(scores, own) == 1
    scores = torch.cat([scores, scores[:1]])
    assert retrieval_accuracy(scores, torch.tensor([1, 1, 1])) == pytest.approx(1 / 3)


def test_mutual_information_of_thoughts_that_ignore_or_copy_the_prompt():
    own = torch.arange(8)
    assert mutual_information(torch.full((8, 8), -3.0), own) == pytest.approx(0, abs=1e-6)
    assert retrieval_accuracy(torch.full((8, 8), -3.0), own) == 1 / 8       # chance, in a tie
    copy = torch.full((8, 8), -1e4).fill_diagonal_(-1.0)
    assert mutual_information(copy, own) == pytest.approx(math.log(8), abs=1e-6)


def test_probe_scores_every_reply_under_every_prompt(url, model):
    """Through transformers' own forward, one pair at a time."""
    run = started(url, config(model, filter="none", temperature=0.7))
    played, _ = train.play_step(run, 2)
    stock = AutoModelForCausalLM.from_pretrained(model)
    firsts = [(t.token_ids[:t.turns[0].start], t.token_ids[t.turns[0].start:t.turns[0].end])
              for t in played]
    prompts = [prompt for prompt, _ in firsts[::4]]         # of four tasks, in order
    assert len({tuple(p) for p in prompts}) == 4

    @torch.no_grad()
    def score(prompt, reply):
        logits = stock(torch.tensor([prompt + reply])).logits[0] / 0.7
        logprobs = logits.log_softmax(-1)[len(prompt) - 1:-1]
        return logprobs.gather(1, torch.tensor(reply)[:, None]).sum().item()
    information, hits = [], []
    for i, (_, reply) in enumerate(firsts):
        scores = [score(prompt, reply) for prompt in prompts]
        own = scores[i // 4]
        information.append(own - math.log(sum(map(math.exp, scores)) / 4))
        hits.append(own == max(scores))
    got = probe(run, played)
    assert got["mutual_information"] == pytest.approx(statistics.fmean(information), abs=1e-4)
    assert got["retrieval_accuracy"] == pytest.approx(statistics.fmean(hits), abs=1e-6)
    assert got["retrieval_chance"] == 1 / 4
    assert statistics.fmean(hits) > 1 / 4 and abs(got["mutual_information"]) > 1e-2
    assert abs(got["kl_start"]) < 1e-6


def test_with_lora_the_probe_loads_no_second_model(url, model, here, monkeypatch):
    run = started(url, config(model, lora=4, filter="none"))
    monkeypatch.setattr(parallel, "load", None)
    batch = train.to_batch(train.play_step(run, 2)[0])
    train.credit(run, batch)
    train.update(run, batch)
    assert probe(run, train.play_step(run, 2)[0])["kl_start"] > 1e-4


def test_measure_probes_with_every_evaluation(monkeypatch):
    monkeypatch.setattr(recipe, "probe", lambda run, played: {"mutual_information": 1.0})
    run = type("Run", (), dict(cfg=train.Config(eval_every=2), step=0))
    lines, step = [], type("Outcome", (), dict(played=[]))
    for run.step in range(4):
        lines.append(recipe.measure(run, step, measure=lambda *_: {"step": 0}))
    assert ["mutual_information" in line for line in lines] == [True, False] * 2
    run.cfg = replace(run.cfg, eval_every=0)
    assert recipe.measure(run, step, measure=lambda *_: {"step": 0}) == {"step": 0}


def test_template_collapse_compares_the_first_two_probes_with_the_last_two(monkeypatch):
    monkeypatch.setattr(panel, "echo_trap_signals", recipe.signals)

    def told(signal, *values, decay=1.0, **more):
        """{signal: sentence} of template collapse after any step; a probe every five steps."""
        history = [{"success": 0.5, "entropy": 0.8 * decay ** s, **more,
                    signal: values[s // 5] if s % 5 == 0 else None} for s in range(5 * len(values))]
        return {signal: sentence for stop in range(len(history) + 1) for signal, sentence
                in panel.collapse_warnings(history[:stop]) if "template" in sentence}
    falls = "mutual_information", 3.0, 1.0, 1.0, 0.6, 0.1
    assert "(mutual_information 2 -> 0.35, " in told(*falls)[falls[0]]
    assert told(*falls, decay=0.95) == {}                   # entropy tells it already
    assert told(*falls, success=0.97) == {}
    assert told(falls[0], 2.0, 2.0, 2.0, 1.2, 0.1) == {}    # 0.65 is more than a quarter of 2
    assert told(falls[0], 2.0, 0.1, 0.1) == {}              # fewer than four probes
    hits = "retrieval_accuracy", 0.9, 0.7, 0.5, 0.28, 0.28
    assert told(*hits) == {}                                # 0.28 is more than a quarter of 0.8,
    assert told(*hits, retrieval_chance=0.125).keys() == {hits[0]}      # 0.155 of 0.675 not
