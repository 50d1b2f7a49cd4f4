// The numbers of update rules, as one list for writing and reading them as bytes.
#pragma once

#include <type_traits>
#include <variant>

#include "weft/net/stream/bytes.h"
#include "weft/optim/update_rule.h"
#include "weft/ps/table/rule.h"

namespace weft::ps::internal {

// Calls visit(field) for the numbers of an update rule.
template <class Visit>
void each_field(kernels::Regularizer& o, Visit&& visit) {
  visit(o.l1);
  visit(o.l2);
}
template <class Visit>
void each_field(kernels::Sgd& o, Visit&& visit) {
  visit(o.lr);
  visit(o.momentum);
  visit(o.dampening);
  visit(o.nesterov);
  each_field(o.regularizer, visit);
}
template <class Visit>
void each_field(kernels::RmsProp& o, Visit&& visit) {
  visit(o.lr);
  visit(o.alpha);
  visit(o.eps);
  visit(o.momentum);
  visit(o.centered);
  each_field(o.regularizer, visit);
}
template <class Visit>
void each_field(kernels::Adagrad& o, Visit&& visit) {
  visit(o.lr);
  visit(o.lr_decay);
  visit(o.eps);
  each_field(o.regularizer, visit);
}
template <class Visit>
void each_field(kernels::Adam& o, Visit&& visit) {
  visit(o.lr);
  visit(o.beta1);
  visit(o.beta2);
  visit(o.eps);
  visit(o.decoupled_decay);
  visit(o.amsgrad);
  each_field(o.regularizer, visit);
}
template <class Visit>
void each_field(kernels::Lion& o, Visit&& visit) {
  visit(o.lr);
  visit(o.beta1);
  visit(o.beta2);
  visit(o.decoupled_decay);
  each_field(o.regularizer, visit);
}

// Rules that need whole tensors, which check() refuses.
template <class Rule, class Visit>
requires(std::is_same_v<Rule, optim::Lars> || std::is_same_v<Rule, optim::Lamb> ||
         std::is_same_v<Rule, optim::Adafactor> ||
         std::is_same_v<Rule, optim::Muon>) void each_field(Rule&, Visit&&) {}

// Rules of rows.
template <class Visit>
void each_field(Add&, Visit&&) {}
template <class Visit>
void each_field(Adagrad& o, Visit&& visit) {
  each_field(o.rule, visit);
  visit(o.initial_accumulator);
}
template <class Visit>
void each_field(Ftrl& o, Visit&& visit) {
  visit(o.alpha);
  visit(o.beta);
  visit(o.l1);
  visit(o.l2);
}

// The alternative with this number, with the defaults of its numbers. Throws Error(kCorrupt).
template <class Rule, std::size_t I = 0>
Rule rule_of_kind(std::size_t kind) {
  if constexpr (I < std::variant_size_v<Rule>) {
    if (kind == I) return std::variant_alternative_t<I, Rule>{};
    return rule_of_kind<Rule, I + 1>(kind);
  } else {
    net::internal::ByteReader::fail();
  }
}

// A variant of rules: the number of the alternative, and its numbers.
template <class Rule>
void put_rule(net::internal::ByteWriter& out, Rule rule) {
  out.put(static_cast<std::uint8_t>(rule.index()));
  std::visit([&](auto& o) { each_field(o, [&](auto& field) { out.put(field); }); }, rule);
}

struct TakeField {
  net::internal::ByteReader& in;
  void operator()(double& field) const { field = in.take<double>(); }
  void operator()(bool& field) const { field = in.take<std::uint8_t>() != 0; }
};

template <class Rule>
Rule take_rule(net::internal::ByteReader& in) {
  Rule rule = rule_of_kind<Rule>(in.take<std::uint8_t>());
  std::visit([&](auto& o) { each_field(o, TakeField{in}); }, rule);
  return rule;
}

}  // namespace weft::ps::internal
