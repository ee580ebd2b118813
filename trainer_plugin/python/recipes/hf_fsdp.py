"""Hugging Face models under FSDP2: padded batches, and packed ones under Ulysses sequence parallelism."""

from torch.distributed.fsdp import fully_shard

from routing_replay_trainer import hf


def train(model, optimizer, steps, loss_of, source, log):
    """source: ServiceSource(Client().run("grpo-42"))"""
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    replay = hf.attach(model, source=source, mode="R3", missing="live")
    for micro_batches in steps:
        replay.begin_step([sample for batch in micro_batches for sample in batch["sample_ids"]])
        for batch in micro_batches:
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            with replay.micro_batch(
                batch["sample_ids"], tokens=inputs["input_ids"], attention_mask=batch["attention_mask"]
            ):
                logits = model(**inputs).logits
            loss_of(logits, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        replay.end_step()
        log(replay.metrics())


def packed_forward(replay, model, sample_ids, input_ids_rmpad, position_ids_rmpad, slice_for_rank):
    """replay: hf.attach(…, ranks={"cp": ulysses_rank}, cp_size=ulysses_sequence_parallel_size); the ids are those of
    the whole micro-batch [1, total_nnz], padded to a multiple of that size."""
    with replay.micro_batch(sample_ids, tokens=input_ids_rmpad, position_ids=position_ids_rmpad):
        return model(input_ids=slice_for_rank(input_ids_rmpad), position_ids=slice_for_rank(position_ids_rmpad)).logits
