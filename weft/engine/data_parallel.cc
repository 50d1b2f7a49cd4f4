#include "weft/engine/data_parallel.h"

#include "weft/engine/internal/replica.h"

namespace weft::parallel {

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module, Group group, DataParallelOptions options)
    : replica_(std::make_shared<Replica>(std::move(module), std::move(group), std::move(options))) {
  replica_->start();
}

const Group& DataParallelBase::group() const { return replica_->group(); }
DataParallelBase::NoSync::NoSync(Replica& replica) : replica_(replica) { replica_.pause(); }
DataParallelBase::NoSync::~NoSync() { replica_.resume(); }
DataParallelBase::NoSync DataParallelBase::no_sync() { return NoSync(*replica_); }
void DataParallelBase::set_samples(double samples) { replica_->set_samples(samples); }
DataParallelBase::Times DataParallelBase::take_times() { return replica_->take_times(); }
std::vector<std::pair<std::string, at::Tensor>> DataParallelBase::codec_state() { return replica_->sync().codec_state(); }
void DataParallelBase::load_codec_state(const std::vector<std::pair<std::string, at::Tensor>>& state) {
  replica_->sync().load_codec_state(state);
}
void DataParallelBase::wait_for_weights() { replica_->settle(); }
std::string DataParallelBase::describe() const { return replica_->describe(); }

void DataParallelBase::count_samples(const at::Tensor& first) const {
  if (at::GradMode::is_enabled() && first.dim() > 0) replica_->add_samples(static_cast<double>(first.size(0)));
}

Optimizer DataParallelBase::make_optimizer(OptimizerSpec spec) const {
  replica_->use_optimizer(std::move(spec));
  return Optimizer(replica_);
}

}  // namespace weft::parallel
