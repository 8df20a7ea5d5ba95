"""What no test of tests/ tells of a silent bug. Not in a student's copy."""
import torch

import train
from fakes import config, save_policy, served, started
from batch import to_batch


def test_the_critic_is_fitted_to_the_returns(tmp_path, monkeypatch):
    """Values are 0 at first, in both places: the first loss of a token is R^2 / 2."""
    monkeypatch.chdir(tmp_path)
    with served() as url:
        run = started(url, config(save_policy(str(tmp_path / "policy")), "ppo", mini_batches=1))
        batch = to_batch(train.play_step(run, 2)[0])
        train.credit(run, batch)
        loss = train.update(run, batch)["value_loss"]
        mask = batch.response_mask
        wanted = (batch.returns[mask].square() / 2).mean().item()
    assert not batch.values[mask].any() and wanted > 0.01
    assert torch.isclose(torch.tensor(loss), torch.tensor(wanted), rtol=1e-4), \
        f"came a first value loss of {loss}, expected {wanted}, half the mean squared return"
