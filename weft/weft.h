// The single header of weft: distributed training for libtorch programs, in namespace weft.
// It adds about one second to the compile time of a file that includes <torch/torch.h>.
// Layers whose weights are split over ranks are in weft/layers.h, which includes parts of torch/nn.
//
//   init, run with a Group      weft::init(), weft::replicate(), weft::Group, weft::Mesh
//   data parallelism            weft::data_parallel(module, group)
//   ZeRO                        weft::Sharded
//   every form of parallelism   weft::parallelize(blocks, plan, mesh)
//   workers with own weights    weft::Strategy: local SGD, DiLoCo, EASGD, gossip, …
//   training runs               weft::Trainer of a weft::Task: any model, any data
//   a loop that survives        weft::elastic::run(state, step)
//   files                       weft::checkpoint
//   compressed gradients        weft::CodecSpec, by name in the options: "powersgd:4"
//   errors                      weft::Error, weft::Errc
#pragma once

#include "weft/base/error.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/group.h"
#include "weft/comm/init.h"
#include "weft/comm/replicate.h"
#include "weft/components/trainer.h"
#include "weft/compress/spec.h"
#include "weft/data/sampler.h"
#include "weft/elastic/run.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/sharded.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/parallel/pipeline/pipeline.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/strategy/strategy.h"
#include "weft/train/dataset.h"
#include "weft/train/export.h"
#include "weft/train/trainer.h"

namespace weft {

using comm::Transport;
using components::Trainer;
using engine::Block;
using engine::block;
using engine::data_parallel;
using engine::DataParallel;
using engine::DataParallelOptions;
using engine::optimizer_spec;
using engine::OptimizerSpec;
using engine::Sharded;
using engine::ShardedOptions;
using engine::Weights;
using parallel::BlockModel;
using parallel::blocks_of;
using parallel::parallelize;
using parallel::ParallelModel;
using parallel::Pipeline;
using parallel::Plan;
using parallel::recompute;
using train::load_weights;
using train::Task;
using train::TrainerOptions;
using train::TrainResult;
using train::WeightsOptions;

}  // namespace weft
