// The ranks of a comm::Group, for the torch-free solvers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/group.h"
#include "weft/linear/solve/ranks.h"

namespace weft::linear::internal {

class GroupRanks final : public Ranks {
 public:
  explicit GroupRanks(Group group);
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void sum(std::span<double> values) override;
  void max(std::span<double> values) override;
  std::vector<std::string> gather(const std::string& mine) override;
  std::vector<std::string> exchange(std::vector<std::string> to) override;
  std::uint64_t exchanged_bytes() const override;
  bool in_memory() const override { return size() == 1 || group_.host() != nullptr; }

 private:
  std::uint64_t moved() const;

  Group group_;
  std::uint64_t before_;
};

// Runs `work` on every rank. If it throws an Error on some ranks, all ranks throw that of the first
// of them: so none waits in a collective for a rank that has failed. Collective.
void together(Ranks& ranks, const std::function<void()>& work);

}  // namespace weft::linear::internal
