"""Step 5: `speak` and `play`, against a forward pass of transformers and a client that is told
what to answer."""
from types import SimpleNamespace

import pytest
import torch

from chat import Agent
from client import Answer, EnvError, Reset, Step
from fakes import MARKS, chat_tokenizer, twins
from episode import Episode, play, speak


def begun(**settings):
    """(an episode that has read its first observation, a policy, the same in transformers)."""
    tokenizer = chat_tokenizer()
    loud = [0, *tokenizer.convert_tokens_to_ids(MARKS)]
    policy, stock = twins(vocabulary=len(tokenizer), loud=loud, seed=4)
    # Several lines, so that a reply does not end with a line.
    module = SimpleNamespace(NAME="toy", SEVERAL_LINES=True)
    agent = Agent(tokenizer, prompt="Be quick.", max_turn_tokens=8, max_context=500,
                  module=module, **settings)
    return Episode(agent, 3, (0, 1, 0), 3), policy, stock


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_speak_draws_each_token_from_its_own_number_after_all_that_was_seen(temperature):
    episode, policy, stock = begun()
    episode.observe("so go")
    context, uniforms, wanted = list(episode.seen), list(episode.uniforms), []
    while len(wanted) < 8 and 0 not in wanted:              # 0 ends a reply
        logits = stock(torch.tensor([context + wanted])).logits[0, -1].double() / temperature
        total = logits.softmax(-1).cumsum(-1)
        wanted.append(int((total <= uniforms[len(wanted)]).sum()))
    speak(policy, episode, temperature)
    turn = episode.trajectory.turns[0]
    came = episode.trajectory.token_ids[turn.start:turn.end]
    assert came == wanted, f"came the reply {came}, expected {wanted}"


class Told:
    """A client that gives the answers it was told, and notes what it is asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def answer(self, items):
        self.asked += items
        return [self.answers.pop(0)]


def say(word):
    def reply(episode):
        chat = episode.agent.chat
        ids = chat.encode(word) + [chat.stop_id]
        episode.reply(ids, [-1.0] * len(ids))
    return reply


def test_play_uses_one_session_and_takes_every_answer_to_the_episode():
    episode, *_ = begun()
    client = Told(Answer("s1", "start", 0.0, False, {}), Answer("s1", "on", 0.25, False, {}),
                  Answer("s2", "won", 1.0, True, {"score": 1.0, "success": True}))
    session = play(say("go"), episode, client)
    sessions = [session for session, *_ in client.asked]
    assert sessions == [None, "s1", "s1"], \
        f"came requests to the sessions {sessions}, expected [None, 's1', 's1']"
    assert [type(request) for _, request in client.asked] == [Reset, Step, Step]
    assert session == "s2", f"came the session {session!r}, expected 's2', that of the last answer"
    rewards = [turn.reward for turn in episode.trajectory.turns]
    assert rewards == [0.25, 1.0], f"came the rewards {rewards}, expected [0.25, 1.0]"
    assert episode.trajectory.success and episode.trajectory.done


def test_play_begins_in_the_session_it_is_given():
    episode, *_ = begun()
    client = Told(Answer("old", "start", 0.0, False, {}), Answer("old", "won", 1.0, True, {}))
    play(say("go"), episode, client, session="old")
    assert client.asked[0][0] == "old", f"came {client.asked[0][0]!r}, expected 'old'"


def test_play_raises_the_error_of_an_environment():
    episode, *_ = begun()
    client = Told(Answer("s1", "start", 0.0, False, {}), EnvError("it is down"))
    try:
        play(say("go"), episode, client)
    except EnvError as error:
        assert str(error) == "it is down"
    else:
        raise AssertionError("came an end without an error, expected EnvError: a failure of the "
                             "environment is no observation and no reward of 0")
