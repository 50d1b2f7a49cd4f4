#include "weft/cli/bench/internal/training_rank.h"

#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/backend.h"
#include "weft/models/registry.h"
#include "weft/net/heap.h"
#include "weft/parallel/data/data_parallel.h"

namespace weft::cli::bench_internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;

struct Batch {
  at::Tensor images, labels;
};

// From a seed, another one for each rank.
Batch fixed_batch(int size, int rank) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + rank));
  return {torch::randn({size, 1, 28, 28}, generator), torch::randint(0, 10, {size}, generator, torch::kLong)};
}

// The same on every rank.
models::Model make_model(const std::string& name) {
  torch::manual_seed(1);
  return models::make_model({.name = name});
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.01).momentum(0.9); }
torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(1e-3); }

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::string& name, const models::Model& model) {
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(model.module->parameters(), sgd());
  return std::make_unique<torch::optim::AdamW>(model.module->parameters(), adamw());
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

struct Memory {
  double heap = 0, pss = 0;
};
Memory memory_now() {
  const net::Heap* heap = net::process_heap();
  return {heap != nullptr ? static_cast<double>(heap->stats().live_bytes) : 0, proc_bytes("/proc/self/smaps_rollup", "Pss:")};
}

std::vector<double> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

class Job {
 public:
  Job(const comm::Group& group, Variant variant, const TrainingCase& what)
      : group_(group),
        alone_(variant == Variant::kAlone),
        samples_(what.batch),
        batch_(fixed_batch(what.batch, group.rank())),
        before_(memory_now()),
        model_(make_model(what.model)),
        parallel_(parallel::data_parallel(model_.module, alone_ ? own_group() : group)) {
    if (variant == Variant::kPrivate) {
      private_ = torch_optimizer(what.optimizer, model_);
    } else if (what.optimizer == "sgd") {
      optimizer_ = parallel_.optimizer<torch::optim::SGD>(sgd());
    } else {
      optimizer_ = parallel_.optimizer<torch::optim::AdamW>(adamw());
    }
  }

  std::string carry_out(const Message& command) {
    const int warmup = static_cast<int>(command.number("warmup")), steps = static_cast<int>(command.number("steps"));
    std::vector<double> step_ms;
    std::vector<at::Tensor> losses;
    meet(group_);
    for (int i = 0; i < warmup + steps; ++i) {
      const auto start = Clock::now();
      losses.push_back(step());
      if (i >= warmup) step_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    at::Tensor mean = torch::stack(losses);
    losses.clear();
    const std::string memory = this->memory();
    if (!alone_) group_.all_reduce(mean, ReduceOp::kAvg);
    return "\"step_ms\":" + json_array(step_ms) + ",\"losses\":" + json_array(values(mean)) + memory +
           (alone_ ? "" : std::string(",\"equal\":") + (weights_agree() ? "true" : "false"));
  }

 private:
  static comm::Group own_group() { return {comm::make_backend(nullptr, 0, 1), "alone"}; }

  at::Tensor step() {
    if (optimizer_) {
      optimizer_->zero_grad();
    } else {
      private_->zero_grad();
    }
    parallel_.set_samples(samples_);
    const at::Tensor loss = torch::nn::functional::cross_entropy(model_.forward(batch_.images), batch_.labels);
    loss.backward();
    if (optimizer_) {
      optimizer_->step();
    } else {
      private_->step();
    }
    if (alone_) meet(group_);  // ranks that reduce wait for each other in every step, so these must too
    return loss.detach();
  }

  // The same on all ranks.
  bool weights_agree() {
    const at::NoGradGuard no_grad;
    bool agree = true;
    for (const auto& parameter : model_.module->parameters()) {
      at::Tensor first = parameter.detach().clone();
      group_.broadcast(first);
      agree &= at::equal(first.view(at::kInt), parameter.detach().view(at::kInt));
    }
    at::Tensor all = at::full({1}, agree ? 1.0F : 0.0F);
    group_.all_reduce(all, ReduceOp::kMin);
    return all.item<float>() == 1;
  }

  std::string memory() const {
    const Memory now = memory_now();
    at::Tensor sums = at::tensor({now.heap - before_.heap, now.pss - before_.pss}, at::kDouble) / kMiB;
    group_.all_reduce(sums);
    at::Tensor rss = at::empty({group_.size()}, at::kDouble);
    group_.all_gather(rss, at::full({1}, proc_bytes("/proc/self/status", "VmRSS:") / kMiB, at::kDouble));
    const auto sum = values(sums);
    return ",\"state_mb\":" + json_array({sum[0]}) + ",\"grown_mb\":" + json_array({sum[1]}) + ",\"rss_mb\":" + json_array(values(rss));
  }

  comm::Group group_;
  bool alone_;
  int samples_;
  Batch batch_;
  Memory before_;
  models::Model model_;
  parallel::DataParallel<torch::nn::Module> parallel_;
  std::optional<parallel::Optimizer> optimizer_;
  std::unique_ptr<torch::optim::Optimizer> private_;
};

// Each batch has a forward of its own, since batch normalisation looks at a rank's samples only; the loss is the mean.
std::string reference(const TrainingCase& what, const Message& command) {
  const auto model = make_model(what.model);
  const auto optimizer = torch_optimizer(what.optimizer, model);
  const int ranks = static_cast<int>(command.number("batches"));
  std::vector<Batch> batches;
  for (int rank = 0; rank < ranks; ++rank) batches.push_back(fixed_batch(what.batch, rank));
  std::vector<double> losses;
  for (int i = 0; i < command.number("steps"); ++i) {
    optimizer->zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const auto& batch : batches) {
      loss = loss + torch::nn::functional::cross_entropy(model.forward(batch.images), batch.labels) / ranks;
    }
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return "\"losses\":" + json_array(losses);
}

}  // namespace

CarryOut make_training(const comm::Group& group, Variant variant, const TrainingCase& what) {
  if (variant == Variant::kReference) return [what](const Message& command) { return reference(what, command); };
  const auto job = std::make_shared<Job>(group, variant, what);
  return [job](const Message& command) { return job->carry_out(command); };
}

}  // namespace weft::cli::bench_internal
