// Which models of a group one backward() reaches together. Models of different ranks that do not
// are not comparable: gradients of each model are weighted by its own samples, so a rank that
// leaves one of them out would change its weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::engine::internal {

class Company {
 public:
  // `group` tells the groups of this rank apart. `number`: of the model, alike on all ranks.
  Company(const void* group, std::int64_t number, std::vector<at::Tensor> trained);
  ~Company();
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

  // Within backward(), when it has reached this model: notes the others of the group that it
  // reaches. Costs a comparison after the first call in each backward(), and then a look-up for
  // each other model.
  void note();
  // The step has ended, or its gradients were dropped.
  void forget();
  // The first of `trained` that another model of this process trains too; -1: there is none. Both
  // would take its gradients. Costs a comparison unless models came or went since the last call.
  int shared();
  // A number for the models noted since forget(), this one among them. 0: no backward() has reached
  // this model.
  std::uint64_t value() const;

 private:
  bool is_reached() const;

  const void* const group_;
  const std::int64_t number_;
  const std::vector<at::Tensor> trained_;
  std::set<std::int64_t> seen_;
  int task_ = -1;  // the backward() of the last note()
  // Of the last shared().
  std::int64_t looked_at_ = -1;  // changes of the models of this process until then
  int shared_ = -1;
};

// Two ranks with other values, none of which is 0; nullopt: there are none.
std::optional<std::pair<int, int>> first_apart(const std::vector<std::uint64_t>& companies);
// The error's text for them, or for unknown ranks.
std::string apart_text(const std::optional<std::pair<int, int>>& ranks,
                       const std::string& parameter);

}  // namespace weft::engine::internal
