#include "bench/suite/internal/training_rank.h"

#include <sys/resource.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>

#include "bench/suite/internal/subject.h"
#include "weft/engine/data_parallel.h"
#include "weft/engine/sharded.h"
#include "weft/net/memory/heap.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::cli::bench_internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.01).momentum(0.9); }
torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(1e-3); }

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::string& name,
                                                         const Subject& subject) {
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(subject.module->parameters(), sgd());
  return std::make_unique<torch::optim::AdamW>(subject.module->parameters(), adamw());
}
engine::OptimizerSpec weft_optimizer(const std::string& name) {
  return name == "sgd" ? engine::optimizer_spec(sgd(), {}) : engine::optimizer_spec(adamw(), {});
}

// Bytes of a line "Pss:   123 kB" of a file in /proc/self.
double proc_bytes(const char* file, const std::string& field) {
  std::ifstream lines(file);
  for (std::string name; lines >> name;) {
    double kib = 0;
    if (name == field && lines >> kib) return kib * 1024;
    lines.ignore(1 << 10, '\n');
  }
  return 0;
}

// User and system time of this process.
double cpu_ms() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

struct Memory {
  double heap = 0, pss = 0;
};
Memory memory_now() {
  const net::Heap* heap = net::process_heap();
  return {heap != nullptr ? static_cast<double>(heap->stats().live_bytes) : 0,
          proc_bytes("/proc/self/smaps_rollup", "Pss:")};
}

std::vector<double> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

// step() runs one training step on this rank's batch and returns its loss.
struct Trainer {
  std::function<at::Tensor(const Batch&)> step;
  std::function<engine::Sharded::Memory()> count = nullptr;  // kSharded only
};

// The usual step: zero_grad, forward, backward, step. `model` and `optimizer` are shared pointers,
// which the step keeps.
template <typename Model, typename Optimizer, typename Forward>
Trainer usual_step(const Subject& subject, const Model& model, const Optimizer& optimizer,
                   const Forward& forward) {
  return {[model, optimizer, forward, loss_of = subject.loss](const Batch& batch) {
    optimizer->zero_grad();
    const at::Tensor loss = loss_of(forward(batch.inputs), batch.labels);
    loss.backward();
    optimizer->step();
    return loss.detach();
  }};
}

template <typename Make>
Trainer replicated(const Subject& subject, const comm::Group& group, const Make& make_optimizer) {
  const auto model = std::make_shared<engine::DataParallel<torch::nn::Module>>(
      engine::data_parallel(subject.module, group));
  return usual_step(subject, model, make_optimizer(*model),
                    [model, forward = subject.forward](const at::Tensor& x) {
                      model->set_samples(static_cast<double>(x.size(0)));
                      return forward(x);
                    });
}

Trainer with_our_optimizer(const Subject& subject, const comm::Group& group,
                           const std::string& name) {
  return replicated(subject, group, [&](auto& model) {
    return std::make_shared<engine::Optimizer>(model.optimizer(weft_optimizer(name)));
  });
}

Trainer with_torch_optimizer(const Subject& subject, const comm::Group& group,
                             const std::string& name) {
  return replicated(subject, group, [&](auto&) {
    return std::shared_ptr<torch::optim::Optimizer>(torch_optimizer(name, subject));
  });
}

std::vector<parallel::Block> blocks_of(const Subject& subject) {
  std::vector<parallel::Block> blocks;
  const std::vector<Part> whole{{subject.module, subject.forward}};
  for (const Part& part : subject.parts.empty() ? whole : subject.parts) {
    const auto forward = [forward = part.forward](const parallel::Tensors& inputs) {
      return parallel::Tensors{forward(inputs.at(0))};
    };
    blocks.push_back(
        {.name = std::to_string(blocks.size()), .module = part.module, .forward = forward});
  }
  return blocks;
}

Trainer sharded(const Subject& subject, const comm::Group& group, const TrainingWay& way,
                const std::string& optimizer) {
  engine::ShardedOptions options;
  options.stage = way.stage;
  options.weights = way.weights;
  const auto model = std::make_shared<engine::Sharded>(blocks_of(subject), group,
                                                       weft_optimizer(optimizer), options);
  Trainer trainer =
      usual_step(subject, model, model, [model](const at::Tensor& x) { return model->forward(x); });
  trainer.count = [model] { return model->memory(); };
  return trainer;
}

Trainer parallelized(const Subject& subject, const comm::Group& group,
                     const std::string& optimizer) {
  parallel::BlockModel blocks;
  for (const parallel::Block& block : blocks_of(subject)) {
    blocks.blocks.push_back({block.name, [block](const parallel::Contexts&) { return block; }});
  }
  blocks.loss = subject.loss;
  const auto model = std::make_shared<parallel::ParallelModel>(parallel::parallelize(
      blocks, {.optimizer = weft_optimizer(optimizer)}, parallel::Mesh(group, {{"dp", 0}})));
  return {[model](const Batch& batch) {
    model->zero_grad();
    const double sum = model->forward_backward({batch.inputs}, {batch.labels}).at(0);
    model->step();
    return at::scalar_tensor(sum / static_cast<double>(batch.inputs.size(0)), at::kFloat);
  }};
}

Trainer make_trainer(const Subject& subject, const comm::Group& group, const TrainingWay& way,
                     const std::string& optimizer) {
  switch (way.variant) {
    case Variant::kShared: return with_our_optimizer(subject, group, optimizer);
    case Variant::kPrivate: return with_torch_optimizer(subject, group, optimizer);
    case Variant::kSharded: return sharded(subject, group, way, optimizer);
    case Variant::kParallelize: return parallelized(subject, group, optimizer);
    default: return with_our_optimizer(subject, group_of_one(), optimizer);
  }
}

// MiB of weights, gradients and optimizer state.
double megabytes(const torch::nn::Module& module, const std::string& optimizer) {
  double elements = 0;
  for (const auto& parameter : module.parameters())
    elements += static_cast<double>(parameter.numel());
  return elements * static_cast<double>(sizeof(float)) * (optimizer == "sgd" ? 3 : 4) / kMiB;
}

class Job {
 public:
  Job(const comm::Group& group, const TrainingWay& way, const TrainingCase& what)
      : group_(group),
        way_(way),
        optimizer_(what.optimizer),
        batch_(batch_of(group, way, what)),
        before_(memory_now()) {
    subject_ = way.variant == Variant::kTensor
                   ? make_subject(what.model, parallel::TensorParallel(group, 1))
                   : make_subject(what.model);
    trainer_ = make_trainer(subject_, group, way, what.optimizer);
  }

  std::string carry_out(const Message& command) {
    const int warmup = static_cast<int>(command.number("warmup")),
              steps = static_cast<int>(command.number("steps"));
    std::vector<double> step_ms;
    std::vector<at::Tensor> losses;
    if (trainer_.count) trainer_.count();  // resets the peak
    double cpu = 0;
    meet(group_);
    for (int i = 0; i < warmup + steps; ++i) {
      if (i == warmup) cpu = cpu_ms();
      const auto start = Clock::now();
      losses.push_back(step());
      if (i >= warmup)
        step_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    cpu = (cpu_ms() - cpu) / steps;
    at::Tensor mean = torch::stack(losses);
    losses.clear();
    const std::string memory = this->memory(cpu);
    if (way_.variant != Variant::kAlone) group_.all_reduce(mean, ReduceOp::kAvg);
    std::string answer =
        "\"step_ms\":" + json_array(step_ms) + ",\"losses\":" + json_array(values(mean)) + memory;
    if (trainer_.count) answer += counts();
    if (way_.has_copies())
      answer += std::string(",\"equal\":") + (weights_agree() ? "true" : "false");
    return answer;
  }

 private:
  static Batch batch_of(const comm::Group& group, const TrainingWay& way,
                        const TrainingCase& what) {
    const bool joined = way.variant == Variant::kTensor || way.variant == Variant::kWhole;
    return joined ? joined_batch(what.model, what.batch, what.batches)
                  : fixed_batch(what.model, what.batch, group.rank());
  }

  at::Tensor step() {
    const at::Tensor loss = trainer_.step(batch_);
    // Ranks that reduce gradients wait for each other in every step, so these must do so, too.
    if (way_.variant == Variant::kAlone) meet(group_);
    return loss;
  }

  // Returns the same on all ranks.
  bool weights_agree() {
    const at::NoGradGuard no_grad;
    bool agree = true;
    for (const auto& parameter : subject_.module->parameters()) {
      at::Tensor first = parameter.detach().clone();
      group_.broadcast(first);
      agree &= at::equal(first.view(at::kInt), parameter.detach().view(at::kInt));
    }
    at::Tensor all = at::full({1}, agree ? 1.0F : 0.0F);
    group_.all_reduce(all, ReduceOp::kMin);
    return all.item<float>() == 1;
  }

  std::string memory(double cpu) const {
    const Memory now = memory_now();
    at::Tensor sums = at::tensor(
        {(now.heap - before_.heap) / kMiB, (now.pss - before_.pss) / kMiB, cpu}, at::kDouble);
    group_.all_reduce(sums);
    at::Tensor rss = at::empty({group_.size()}, at::kDouble);
    group_.all_gather(rss,
                      at::full({1}, proc_bytes("/proc/self/status", "VmRSS:") / kMiB, at::kDouble));
    const auto sum = values(sums);
    return ",\"state_mb\":" + json_array({sum[0]}) + ",\"grown_mb\":" + json_array({sum[1]}) +
           ",\"rss_mb\":" + json_array(values(rss)) + ",\"cpu_ms\":" + json_array({sum[2]});
  }

  std::string counts() const {
    at::Tensor peak = at::full({1}, static_cast<double>(trainer_.count().peak) / kMiB, at::kDouble);
    group_.all_reduce(peak, ReduceOp::kMax);
    double largest = 0;
    for (const Part& part : subject_.parts)
      largest = std::max(largest, megabytes(*part.module, optimizer_));
    return ",\"peak_mb\":" + json_array(values(peak)) +
           ",\"whole_mb\":" + json_array({megabytes(*subject_.module, optimizer_)}) +
           ",\"largest_mb\":" + json_array({largest});
  }

  comm::Group group_;
  TrainingWay way_;
  std::string optimizer_;
  Batch batch_;
  Memory before_;
  Subject subject_;
  Trainer trainer_;
};

// Runs a separate forward for each batch, since batch normalization uses the samples of one rank
// only. The loss is the mean.
std::string reference(const TrainingCase& what, const Message& command) {
  const Subject subject = make_subject(what.model);
  const auto optimizer = torch_optimizer(what.optimizer, subject);
  const int ranks = static_cast<int>(command.number("batches"));
  std::vector<Batch> batches;
  for (int rank = 0; rank < ranks; ++rank)
    batches.push_back(fixed_batch(what.model, what.batch, rank));
  std::vector<double> losses;
  for (int i = 0; i < command.number("steps"); ++i) {
    optimizer->zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const auto& batch : batches)
      loss = loss + subject.loss(subject.forward(batch.inputs), batch.labels) / ranks;
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return "\"losses\":" + json_array(losses);
}

}  // namespace

CarryOut make_training(const comm::Group& group, const TrainingWay& way, const TrainingCase& what) {
  if (way.variant == Variant::kReference)
    return [what](const Message& command) { return reference(what, command); };
  const auto job = std::make_shared<Job>(group, way, what);
  return [job](const Message& command) { return job->carry_out(command); };
}

}  // namespace weft::cli::bench_internal
