// Layers whose weights or work are split over ranks: tensor, sequence, expert and context
// parallelism, and batch norm over ranks.
// In a group of one rank they are plain layers with libtorch's parameter names.
// Includes parts of torch/nn.
#pragma once

#include "weft/parallel/batch_norm/sync_batch_norm.h"
#include "weft/parallel/context/context_parallel.h"
#include "weft/parallel/experts/mixture.h"
#include "weft/parallel/tensor/attention.h"
#include "weft/parallel/tensor/conv.h"
#include "weft/parallel/tensor/dropout.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/parallel/tensor/norm.h"
#include "weft/parallel/tensor/vocabulary.h"
