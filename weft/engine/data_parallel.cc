#include "weft/engine/data_parallel.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <array>
#include <string>

#include "weft/base/error.h"
#include "weft/comm/texts.h"
#include "weft/engine/block.h"
#include "weft/engine/internal/binding.h"

namespace weft::engine {
namespace {

constexpr std::array kNames = {"auto", "shared", "private"};

// Buffers by name. Without synchronization, each rank has its own.
checkpoint::Slices buffers_of(const Binding& binding, const std::string& suffix) {
  checkpoint::Slices buffers;
  for (const auto& item : binding.module().named_buffers()) {
    if (item.value().defined())
      buffers.push_back(checkpoint::whole_slice(
          item.key() + suffix, checkpoint::plain_view(item.key(), item.value().detach())));
  }
  return buffers;
}

std::string suffix_of(int rank) { return ".of_rank_" + std::to_string(rank); }

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

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   DataParallelOptions options)
    : binding_(std::make_shared<Binding>(std::move(module), std::move(options))) {}

void DataParallelBase::bind(Group group) { binding_->bind(group); }
void DataParallelBase::unbind() { binding_->unbind(); }
bool DataParallelBase::is_bound() const { return binding_->is_bound(); }
const Group& DataParallelBase::group() const { return binding_->group(); }
NoSync DataParallelBase::no_sync() { return NoSync(binding_->replica()); }
void DataParallelBase::set_samples(double samples) { binding_->replica()->samples().set(samples); }
DataParallelBase::Times DataParallelBase::take_times() { return binding_->replica()->take_times(); }
checkpoint::Slices DataParallelBase::codec_slices() { return binding_->replica()->codec_slices(); }
void DataParallelBase::load_codec(const checkpoint::Reader& saved) {
  binding_->replica()->load_codec(saved);
}
void DataParallelBase::wait_for_weights() { binding_->replica()->settle(); }
std::string DataParallelBase::describe() const { return binding_->replica()->describe(); }

// Without a group, a model can be evaluated.
void DataParallelBase::begin_forward(const at::Tensor& first) const {
  if (!at::GradMode::is_enabled() && !binding_->is_bound()) return;
  Replica& replica = *binding_->replica();
  replica.check_module();
  const bool counts = first.defined() && first.dim() > 0;
  if (at::GradMode::is_enabled())
    replica.samples().begin(counts ? static_cast<double>(first.size(0)) : 0);
}

void DataParallelBase::end_forward(const internal::Outputs& outputs) const {
  if (!at::GradMode::is_enabled()) return;
  internal::SampleCount& samples = binding_->replica()->samples();
  samples.add_outputs(outputs.tensors);
  if (!outputs.known) samples.end_unknown();
}

void DataParallelBase::explain(const c10::Error& error) const {
  const std::string why =
      cause_in_batch_norm(error.what_without_backtrace(),
                          "convert_sync_batch_norm() (weft/layers.h) before data_parallel()");
  if (!why.empty())
    throw Error(Errc::kInvalidArgument, why,
                {"forward", binding_->is_bound() ? binding_->group().rank() : 0});
}

checkpoint::Slices DataParallelBase::shards() {
  Replica& replica = *binding_->replica();
  checkpoint::Slices all = replica.state().shards({});
  const Group& group = replica.group();
  const bool alike = binding_->options().sync_buffers;
  checkpoint::Slices buffers = buffers_of(*binding_, alike ? "" : suffix_of(group.rank()));
  if (alike) buffers = checkpoint::deal(std::move(buffers), group.rank(), group.size());
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

void DataParallelBase::load_shards(const checkpoint::SliceSource& source) {
  Replica& replica = *binding_->replica();
  const Group& group = replica.group();
  const comm::TogetherOptions words{.operation = "load_shards",
                                    .failed = "cannot load its buffers"};
  replica.settle();
  checkpoint::Slices buffers = buffers_of(*binding_, "");
  const auto check = [&] {
    if (!binding_->options().sync_buffers) {
      // A rank that the saved group did not have takes the buffers of rank 0.
      const std::string own = suffix_of(group.rank());
      for (checkpoint::Slice& buffer : buffers)
        buffer.name += source.has(buffer.name + own) ? own : suffix_of(0);
    }
    source.check(buffers);
  };
  comm::together(group, check, words);
  replica.state().load_shards(source, {}, false);
  const at::NoGradGuard no_grad;
  comm::together(
      group, [&] { source.fill(buffers); }, words);
}

double DataParallelBase::lr() const { return binding_->lr(); }
void DataParallelBase::set_lr(double lr) { binding_->set_lr(lr); }

std::string DataParallelBase::outline() const {
  checkpoint::Slices tensors;
  for (const auto& item : binding_->module().named_parameters())
    tensors.push_back(checkpoint::whole_slice(item.key(), item.value().detach()));
  for (checkpoint::Slice& buffer : buffers_of(*binding_, "")) tensors.push_back(std::move(buffer));
  std::string text = checkpoint::outline(tensors);
  if (const auto& optimizer = binding_->optimizer()) {
    text += "optimizer with";
    for (const std::string& name : optim::state_names(optimizer->rule)) text += " " + name;
    text += "; ";
  }
  return text;
}

Optimizer DataParallelBase::make_optimizer(OptimizerSpec spec) const {
  binding_->use_optimizer(std::move(spec));
  return Optimizer(binding_);
}

}  // namespace weft::engine
