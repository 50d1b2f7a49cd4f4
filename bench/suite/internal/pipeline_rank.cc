#include "bench/suite/internal/pipeline_rank.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <map>
#include <memory>

#include "bench/suite/internal/rounds.h"
#include "bench/suite/internal/subject.h"
#include "weft/base/error.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::cli::bench_internal {
namespace {

namespace lists = schedule::pipeline;
using Clock = std::chrono::steady_clock;
using parallel::Block;
using parallel::Pipeline;
using parallel::Tensors;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Makes a block with the same values on every rank.
std::shared_ptr<models::GptBlock> make_block(const models::GptOptions& options, int number) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + number));
  return std::make_shared<models::GptBlock>(options, parallel::TensorParallel());
}

at::Tensor loss_of(const Tensors& y, const Tensors& targets) {
  return at::mse_loss(y[0], targets[0]);
}

class PipelineJob {
 public:
  PipelineJob(const comm::Group& group, const PipelineCase& what)
      : group_(group),
        what_(what),
        options_(gpt_options(what.model)),
        layers_(static_cast<int>(options_.layers)) {
    auto generator = at::detail::createCPUGenerator(1);
    const auto draw = [&] {
      return torch::randn(
          {what.micro_batches * what.samples, options_.sequence_length, options_.width}, generator);
    };
    input_ = draw();
    target_ = draw();
  }

  std::string carry_out(const Message& command) {
    const std::string task = command.text("do");
    Model& model =
        task == "reference" ? reference_model() : pipeline(task, command.text("schedule"));
    std::vector<double> step_ms, losses;
    const int warmup = static_cast<int>(command.number("warmup")),
              steps = static_cast<int>(command.number("steps"));
    for (int i = 0; i < warmup + steps; ++i) {
      model.optimizer->zero_grad();
      meet(group_);
      const auto begin = Clock::now();
      losses.push_back(model.step());
      if (i >= warmup) step_ms.push_back(ms_since(begin));
      if (task == "steps" || task == "reference") model.optimizer->step();
    }
    at::Tensor mean = at::tensor(step_ms, at::kDouble);
    group_.all_reduce(mean, ReduceOp::kAvg);
    const auto* times = mean.const_data_ptr<double>();
    return "\"step_ms\":" + json_array({times, times + mean.numel()}) +
           ",\"losses\":" + json_array(losses);
  }

 private:
  // The input of a later stage needs a gradient. If a stage is measured alone, the first one
  // computes this gradient, too: for a number that is added to the input.
  struct Shifted : torch::nn::Module {
    explicit Shifted(const std::shared_ptr<models::GptBlock>& made)
        : block(register_module("block", made)),
          shift(register_parameter("shift", torch::zeros({1}))) {}
    at::Tensor forward(const at::Tensor& x) { return block->forward(x + shift); }
    std::shared_ptr<models::GptBlock> block;
    at::Tensor shift;
  };

  struct Model {
    std::function<double()> step;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };

  static std::unique_ptr<torch::optim::Optimizer> adamw(const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  }

  Model& pipeline(const std::string& task, const std::string& schedule) {
    Model& model = models_[task + " " + schedule];
    if (model.step) return model;
    const bool whole = task == "steps";
    const int ranks = group_.size(), count = whole ? layers_ : layers_ / ranks,
              first = whole ? 0 : group_.rank() * count;
    const auto make = [this, first, whole](int i) {
      const auto block = make_block(options_, first + i);
      return whole || i > 0 ? engine::block(block)
                            : engine::block(std::make_shared<Shifted>(block));
    };
    parallel::PipelineOptions options{.algorithm = lists::parse_algorithm(schedule),
                                      .micro_batches = what_.micro_batches};
    options.loss = loss_of;
    const auto pipeline =
        std::make_shared<Pipeline>(whole ? group_ : group_of_one(), count, make, options);
    if (task == "frozen") {
      for (const at::Tensor& parameter : pipeline->parameters())
        parameter.requires_grad_(parameter.numel() == 1);  // only Shifted's
    }
    model.optimizer = adamw(pipeline->parameters());
    const at::Tensor input = input_.clone();
    if (task == "forward") {
      model.step = [pipeline, input, this] { return pipeline->evaluate({input}, {target_}); };
    } else {
      model.step = [pipeline, input, this] { return pipeline->train_step({input}, {target_}); };
    }
    return model;
  }

  Model& reference_model() {
    Model& model = models_["reference"];
    if (model.step) return model;
    std::vector<std::shared_ptr<models::GptBlock>> blocks;
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < layers_; ++i) {
      blocks.push_back(make_block(options_, i));
      for (const auto& parameter : blocks.back()->parameters()) parameters.push_back(parameter);
    }
    model.optimizer = adamw(parameters);
    model.step = [blocks, this] {
      at::Tensor x = input_;
      for (const auto& block : blocks) x = block->forward(x);
      const at::Tensor loss = loss_of({x}, {target_});
      loss.backward();
      return loss.item<double>();
    };
    return model;
  }

  comm::Group group_;
  PipelineCase what_;
  models::GptOptions options_;
  int layers_;
  at::Tensor input_, target_;
  std::map<std::string, Model> models_;
};

// A micro-batch of each model.
Batch sample_of(const std::string& model) {
  return fixed_batch(model, model == "resnet18" ? 32 : 4, 0);
}

class StagesJob {
 public:
  explicit StagesJob(comm::Group group) : group_(std::move(group)) {}

  std::string carry_out(const Message& command) const {
    const std::string task = command.text("do"), model = command.text("model");
    if (task == "cuts")
      return "\"cuts\":" + json_array(cuts(model, static_cast<int>(command.number("stages"))));
    WEFT_REQUIRE(task == "times", "stages: unknown task '" + task + "'");
    const Subject subject = make_subject(model);
    const auto ms =
        times(subject, sample_of(model).inputs, static_cast<int>(command.number("rounds")));
    return "\"count\":" + std::to_string(subject.parts.size()) + ",\"ms\":" + json_array(ms);
  }

 private:
  std::vector<double> cuts(const std::string& model, int stages) const {
    const Subject subject = make_subject(model);
    const auto make = [&](int i) {
      const Part& part = subject.parts[static_cast<std::size_t>(i)];
      return Block{.module = part.module, .forward = [forward = part.forward](const Tensors& x) {
                     return Tensors{forward(x[0])};
                   }};
    };
    // Puts all stages on this rank. The cuts are the same as over as many ranks.
    parallel::PipelineOptions options{.algorithm = lists::Algorithm::kInterleaved,
                                      .virtual_stages = stages};
    options.sample = {sample_of(model).inputs};
    const Pipeline pipeline(group_, static_cast<int>(subject.parts.size()), make, options);
    return {pipeline.cuts().begin(), pipeline.cuts().end()};
  }

  // The input of each part.
  static std::vector<at::Tensor> inputs_of(const Subject& subject, const at::Tensor& sample) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> inputs{sample};
    for (const Part& part : subject.parts) inputs.push_back(part.forward(inputs.back()));
    return inputs;
  }

  static std::vector<double> times(const Subject& subject, const at::Tensor& sample, int rounds) {
    const auto inputs = inputs_of(subject, sample);
    const std::size_t parts = subject.parts.size();
    std::vector<std::vector<double>> samples(parts * (parts + 1) / 2);
    for (int round = 0; round < rounds + 1; ++round) {  // round 0 is the warm-up
      std::size_t run = 0;
      for (std::size_t begin = 0; begin < parts; ++begin) {
        for (std::size_t end = begin + 1; end <= parts; ++end, ++run) {
          const double ms = time(subject, inputs[begin], begin, end);
          if (round > 0) samples[run].push_back(ms);
        }
      }
    }
    std::vector<double> medians;
    for (const auto& one : samples) medians.push_back(median(one));
    return medians;
  }

  static double time(const Subject& subject, const at::Tensor& input, std::size_t begin,
                     std::size_t end) {
    const at::Tensor leaf = input.detach().clone().requires_grad_(begin > 0);
    const auto start = Clock::now();
    at::Tensor x = leaf;
    for (std::size_t part = begin; part < end; ++part) x = subject.parts[part].forward(x);
    x.backward(at::ones_like(x));
    return ms_since(start);
  }

  comm::Group group_;
};

}  // namespace

CarryOut make_pipeline(const comm::Group& group, const PipelineCase& what) {
  const auto job = std::make_shared<PipelineJob>(group, what);
  return [job](const Message& command) { return job->carry_out(command); };
}

CarryOut make_stages(const comm::Group& group) {
  const auto job = std::make_shared<StagesJob>(group);
  return [job](const Message& command) { return job->carry_out(command); };
}

}  // namespace weft::cli::bench_internal
