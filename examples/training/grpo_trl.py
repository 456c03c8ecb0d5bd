# GRPO with TRL: a model of 100,000 random weights learns to walk to the treasure, by calling the environment's tool.
# Run it on a CPU: pip install '.[trl]' && python examples/training/grpo_trl.py [STEPS] [PLOT.png]

import os
import sys
import tempfile
from pathlib import Path

import torch
import trl
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from aenv.adapters.trainers.trl import environment_class, task_rows

HERE = Path(__file__).parent
GROUP = 16
CALL = '<tool_call>\n{"name": "move", "arguments": {"direction": "%s", "steps": 3}}\n</tool_call>'


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each call that is worth trying: so few that chance finds them."""
    words = ["<unk>", "left", "right"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    known = ["<|im_start|>", "<|im_end|>", CALL % "left", CALL % "right"]
    made.add_tokens([AddedToken(each, normalized=False) for each in known])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<unk>", unk_token="<unk>")
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


def model(words: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a small model with random weights."""
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=512, eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def train(steps: int, folder: Path) -> list[float]:
    """Train, and return the mean reward of each step."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    words = tokenizer()
    Treasure = environment_class(str(HERE / "treasure"), store=folder / "trajectories")
    trainer = GRPOTrainer(
        model(words),
        processing_class=words,
        environment_factory=Treasure,
        train_dataset=Dataset.from_list(task_rows(Treasure)),  # a row for each task
        args=GRPOConfig(
            output_dir=str(folder / "out"), max_steps=steps, learning_rate=3e-3, lr_scheduler_type="constant",
            num_generations=GROUP, per_device_train_batch_size=2 * GROUP, max_completion_length=24,
            max_tool_calling_iterations=1, beta=0.0, logging_steps=1, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True, seed=1, log_level="error",
        ),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if entry.get("reward") is not None]


def plot(rewards: list[float], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    smooth = [sum(rewards[max(0, n - 9) : n + 1]) / len(rewards[max(0, n - 9) : n + 1]) for n in range(len(rewards))]
    pyplot.plot(rewards, alpha=0.3)
    pyplot.plot(smooth, label="mean of 10 steps")
    pyplot.axhline(rewards[0], linestyle=":", color="gray", label="untrained")
    pyplot.xlabel("step")
    pyplot.ylabel("reward")
    pyplot.legend()
    pyplot.savefig(file)


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with tempfile.TemporaryDirectory() as place:
        curve = train(int(sys.argv[1]) if len(sys.argv) > 1 else 200, Path(place))
    tenth = max(1, len(curve) // 10)
    print(f"first {tenth} steps: mean reward {sum(curve[:tenth]) / tenth:.2f}")
    print(f"last {tenth} steps: mean reward {sum(curve[-tenth:]) / tenth:.2f}")
    if len(sys.argv) > 2:
        plot(curve, sys.argv[2])
