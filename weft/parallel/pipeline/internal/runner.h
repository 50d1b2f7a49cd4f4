// One rank's part of a step: its actions and messages, in the schedule's order.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "weft/parallel/pipeline/internal/graph.h"
#include "weft/parallel/pipeline/internal/wire.h"
#include "weft/schedule/pipeline/messages.h"

namespace weft::parallel {
struct PipelineOptions;
}

namespace weft::parallel::internal {

using Fn = std::function<Tensors(const Tensors&)>;
namespace lists = schedule::pipeline;

// The parts of a step's micro-batches that this rank reads.
struct Batch {
  std::vector<Tensors> inputs;   // inputs of the first stage
  std::vector<Tensors> targets;  // targets of the last stage; empty: no loss is computed
  std::vector<double> shares;    // share of the batch's samples, by micro-batch; used with targets
  bool training = true;
};

struct Outcome {
  double loss = 0;
  std::vector<Tensors> outputs;  // outputs of the last stage, if there are no targets
};

class Runner {
 public:
  // `stages`: the function of each stage of this rank. All but `request` outlive it.
  Runner(lists::Request request, const std::map<int, Fn>& stages, const PipelineOptions& options,
         Wire& wire);

  Outcome run(const std::vector<lists::Step>& steps, const Batch& batch);

 private:
  using Place = std::pair<int, int>;  // stage, micro-batch

  void compute(const lists::Action& action);
  // Waits for the inputs of the action from another stage.
  Tensors given_to(lists::Work work, const Place& place);
  void forward(const Place& place, const Tensors& inputs);
  void backward(lists::Work work, const Place& place, const Tensors& gradients);
  Tensors last(const Tensors& outputs, int micro_batch);
  void send(const lists::Step& step);
  void receive(const lists::Step& step);
  // Returns the inputs of the action, from another rank or this one.
  Tensors take(std::map<Place, Tensors>& here, std::map<Place, Wire::ArrivalPtr>& coming,
               const Place& place);
  bool is_last(int stage) const { return stage + 1 == num_stages_; }

  const lists::Request request_;
  const std::map<int, Fn>& stages_;
  const PipelineOptions& options_;
  Wire& wire_;
  const int num_stages_;
  const Batch* batch_ = nullptr;
  std::map<Place, StageGraph> graphs_;
  std::map<Place, Tensors> activations_, gradients_;  // by consumer
  std::map<Place, Wire::ArrivalPtr> coming_activations_, coming_gradients_;
  std::map<Place, Tensors> results_;  // to be sent, by producer
  std::map<Place, Tensors> given_;    // tensors that will get gradients: shapes only
  std::vector<double> losses_;
  Outcome outcome_;
};

}  // namespace weft::parallel::internal
