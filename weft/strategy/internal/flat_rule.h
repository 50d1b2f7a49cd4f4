// What all rules have in common: flat weights, the pace of the exchanges, the result.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/strategy/internal/flat.h"
#include "weft/strategy/internal/pace.h"
#include "weft/strategy/strategy.h"

namespace weft::strategy::internal {

class FlatRule : public Rule {
 public:
  FlatRule(const Strategy& strategy, Part part);

  bool after_step(const Step& step) final;
  const Result& result() override;
  State state() override;
  void restart() override;
  void restored() final;
  void reset_own() override;
  std::int64_t period() const override { return pace_.period(); }

 protected:
  // Sets the arrays from the present weights, which are equal in all workers.
  virtual void start() {}
  // restored() calls it. Rules override it to set what follows from the state.
  virtual void take_restored() {}
  // True if the workers exchange after this step.
  virtual bool is_due(const Step& step) { return pace_.is_due(step); }
  // Exchanges the weights after this step. Without gradients.
  virtual void exchange(const Step& step) = 0;
  // The weights of the result, a vector of this rule's own. Collective.
  virtual at::Tensor result_weights();

  // True if all ranks exchange at the same steps.
  virtual bool exchanges_together() const { return false; }

  // Number of the exchange after this step.
  std::int64_t round_of(const Step& step) const { return pace_.round_of(step.number); }
  int size() const { return part_.workers.size(); }
  const Part& part() const { return part_; }
  const Flat& weights() const { return weights_; }
  // Mean over the workers, without a codec. In place.
  void average(at::Tensor& flat) const;
  // Adds a vector of weights to the state.
  void add_state(const std::string& name, const at::Tensor& flat) {
    arrays_[name] = weights_.views(flat);
  }

 private:
  void note_weights();
  std::vector<bool> trained_now() const;
  // The first change of this rank since note_weights() that is no training, and what to do; empty:
  // none.
  std::string changes() const;
  void check_changes() const;

  const Part part_;
  const Flat weights_, buffers_;
  std::vector<c10::Storage> memory_;  // of the weights, in their order; keeps it alive
  std::vector<bool> trained_;         // by weight: at note_weights()
  Pace pace_;
  std::map<std::string, std::vector<at::Tensor>> arrays_;
  Result result_;
};

// The rules, a file each.
std::unique_ptr<Rule> local_sgd(const Strategy& strategy, Part part);
std::unique_ptr<Rule> slow_momentum(const Strategy& strategy, Part part);
std::unique_ptr<Rule> diloco(const Strategy& strategy, Part part);
std::unique_ptr<Rule> easgd(const Strategy& strategy, Part part);
std::unique_ptr<Rule> gossip(const Strategy& strategy, Part part);
std::unique_ptr<Rule> downpour(const Strategy& strategy, Part part);
std::unique_ptr<Rule> easgd_async(const Strategy& strategy, Part part);
std::unique_ptr<Rule> ad_psgd(const Strategy& strategy, Part part);
std::unique_ptr<Rule> backup(const Strategy& strategy, Part part);

}  // namespace weft::strategy::internal
