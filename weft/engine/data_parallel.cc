#include "weft/engine/data_parallel.h"

#include <array>
#include <string>

#include "weft/base/error.h"
#include "weft/engine/internal/replica.h"

namespace weft::parallel {
namespace {

constexpr std::array kNames = {"auto", "shared", "private"};

}  // namespace

const char* to_string(Weights weights) { return kNames.at(static_cast<std::size_t>(weights)); }

Weights parse_weights(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Weights>(i);
  }
  throw Error(Errc::kInvalidArgument,
              "unknown weights '" + name + "'; the placements are auto, shared and private");
}

NoSync::NoSync(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) { engine_->pause(); }
NoSync::~NoSync() { engine_->resume(); }

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module, Group group,
                                   DataParallelOptions options) {
  Engine::Subject subject{
      .blocks = {{.module = std::move(module)}}, .group = std::move(group), .options = {}};
  subject.options.stage = 0;
  subject.options.average = options.average;
  subject.options.weights = options.weights;
  subject.options.data_parallel = std::move(options);
  replica_ = std::make_shared<Replica>(std::move(subject));
  replica_->start();
}

const Group& DataParallelBase::group() const { return replica_->group(); }
NoSync DataParallelBase::no_sync() { return NoSync(replica_); }
void DataParallelBase::set_samples(double samples) { replica_->set_samples(samples); }
DataParallelBase::Times DataParallelBase::take_times() { return replica_->take_times(); }
checkpoint::Slices DataParallelBase::codec_slices() { return replica_->codec_slices(); }
void DataParallelBase::load_codec(const checkpoint::Reader& saved) { replica_->load_codec(saved); }
void DataParallelBase::wait_for_weights() { replica_->settle(); }
std::string DataParallelBase::describe() const { return replica_->describe(); }

void DataParallelBase::count_samples(const at::Tensor& first) const {
  if (at::GradMode::is_enabled() && first.dim() > 0)
    replica_->add_samples(static_cast<double>(first.size(0)));
}

Optimizer DataParallelBase::make_optimizer(OptimizerSpec spec) const {
  replica_->use_optimizer(std::move(spec));
  return Optimizer(replica_);
}

}  // namespace weft::parallel
