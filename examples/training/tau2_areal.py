# TAU2-Bench with AReaL: its trainer plays tasks by run_agent_return_reward; without AReaL, a stub engine plays a batch.
# Run it with a model at OPENAI_BASE_URL: python examples/training/tau2_areal.py --stub --task 1 --task 2

import argparse
import asyncio
import os
import statistics

from aenv.examples.tau2_rl.agent import ENV, Tau2Workflow


class StubEngine:
    """Stands for AReaL's rollout engine: plays a group for each row, drops failed episodes, and computes advantages."""

    def __init__(self, base_url: str, api_key: str, group: int) -> None:
        self.endpoint = {"base_url": base_url, "api_key": api_key}
        self.group = group

    async def rollout_batch(self, rows: list[dict], workflow: Tau2Workflow) -> list[dict]:
        return [await self.rollout(row, workflow) for row in rows]

    async def rollout(self, row: dict, workflow: Tau2Workflow) -> dict:
        played = (workflow.run(row, **self.endpoint) for _ in range(self.group))
        ended = await asyncio.gather(*played, return_exceptions=True)
        rewards = [each for each in ended if isinstance(each, float)]
        errors = [each for each in ended if not isinstance(each, float)]
        mean = statistics.fmean(rewards) if rewards else 0.0
        return {"row": row, "rewards": rewards, "advantages": [each - mean for each in rewards], "errors": errors}


def train(rows: list[dict], environment: str, args: list[str]) -> None:
    """Train with AReaL, configured as it documents (--config FILE, and settings like actor.path=...)."""
    from areal import PPOTrainer
    from areal.api.cli_args import GRPOConfig, load_expr_config
    from datasets import Dataset

    config, _ = load_expr_config(args, GRPOConfig)
    with PPOTrainer(config, train_dataset=Dataset.from_list(rows)) as trainer:
        trainer.train(workflow="aenv.examples.tau2_rl.agent.Tau2Workflow", workflow_kwargs={"environment": environment})


async def play(rows: list[dict], environment: str, group: int) -> int:
    """Play one batch, print it, and return the number of episodes without a reward."""
    engine = StubEngine(os.environ["OPENAI_BASE_URL"], os.environ.get("OPENAI_API_KEY", ""), group)
    batch = await engine.rollout_batch(rows, Tau2Workflow(environment))
    for each in batch:
        print(f"task {each['row']['task_id']}: rewards {each['rewards']}, advantages {each['advantages']}")
        for error in each["errors"]:
            print(f"  no reward: {type(error).__name__}: {error}")
    return sum(len(each["errors"]) for each in batch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--domain", default="airline")
    parser.add_argument("--task", action="append", help="id of a task; may be repeated")
    parser.add_argument("--environment", default=ENV)
    parser.add_argument("--group", type=int, default=4, help="episodes of a task in a batch of the stub engine")
    parser.add_argument("--stub", action="store_true", help="play one batch without AReaL")
    chosen, others = parser.parse_known_args()
    tasks = [{"domain": chosen.domain, "task_id": task} for task in chosen.task or ["1"]]
    if chosen.stub:
        raise SystemExit(1 if asyncio.run(play(tasks, chosen.environment, chosen.group)) else 0)
    train(tasks, chosen.environment, others)
