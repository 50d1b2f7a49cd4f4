// One rank's part of a step: its actions and messages, in the schedule's order.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "weft/parallel/pipeline/internal/graph.h"
#include "weft/parallel/pipeline/internal/wire.h"
#include "weft/schedule/pipeline/messages.h"

namespace weft::parallel::internal {

using Fn = std::function<Tensors(const Tensors&)>;
namespace lists = schedule::pipeline;

// The micro-batches of a step, as far as this rank reads them.
struct Batch {
  std::vector<Tensors> inputs;   // the first stage's
  std::vector<Tensors> targets;  // the last stage's; empty: no loss is computed
  std::vector<double> shares;    // of the batch's samples, by micro-batch; beside targets
  bool training = true;
};

struct Outcome {
  double loss = 0;
  std::vector<Tensors> outputs;  // of the last stage, where there are no targets
};

class Runner {
 public:
  using Loss = std::function<at::Tensor(const Tensors&, const Tensors&)>;

  struct Plan {
    const lists::Request& request;
    const std::map<int, Fn>& stages;  // what each of this rank's stages computes
    const Loss& loss;
    // Each action of training; may be empty.
    const std::function<void(const lists::Action&)>&before, &after;
  };
  Runner(const Plan& plan, Wire& wire);

  Outcome run(const std::vector<lists::Step>& steps, const Batch& batch);

 private:
  using Place = std::pair<int, int>;  // stage, micro-batch

  void compute(const lists::Action& action);
  // What the action needs from another stage: waits for it.
  Tensors given_to(lists::Work work, const Place& place);
  void forward(const Place& place, const Tensors& inputs);
  void backward(lists::Work work, const Place& place, const Tensors& gradients);
  Tensors last(const Tensors& outputs, int micro_batch);
  void send(const lists::Step& step);
  void receive(const lists::Step& step);
  // What the action of this place needs, from another rank or this one.
  Tensors take(std::map<Place, Tensors>& here, std::map<Place, Wire::ArrivalPtr>& coming,
               const Place& place);
  bool is_last(int stage) const { return stage + 1 == num_stages_; }

  const std::map<int, Fn>& stages_;
  const Loss& loss_;
  const std::function<void(const lists::Action&)>&before_, &after_;
  Wire& wire_;
  const lists::Request request_;
  const int num_stages_;
  const Batch* batch_ = nullptr;
  std::map<Place, StageGraph> graphs_;
  std::map<Place, Tensors> activations_, gradients_;  // by who needs them
  std::map<Place, Wire::ArrivalPtr> coming_activations_, coming_gradients_;
  std::map<Place, Tensors> results_;  // to be sent, by who made them
  std::map<Place, Tensors> given_;    // what gradients are expected for: shapes only
  std::vector<double> losses_;
  Outcome outcome_;
};

}  // namespace weft::parallel::internal
