"""One model computed by several processes together, each with a part of its weights: tensor parallelism by DTensor."""
