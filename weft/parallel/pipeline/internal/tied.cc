#include "weft/parallel/pipeline/internal/tied.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/comm/texts.h"

namespace weft::parallel::internal {
namespace {

struct Holder {
  int block, rank;
  std::string shape;
};

// "name\nblock\nshape\n" for each tied parameter of each rank.
std::map<std::string, std::vector<Holder>> holders_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<Holder>> holders;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < texts[rank].size();) {
      const std::size_t end = texts[rank].find('\n', begin);
      lines.push_back(texts[rank].substr(begin, end - begin));
      begin = end + 1;
    }
    for (std::size_t i = 0; i + 2 < lines.size(); i += 3) {
      holders[lines[i]].push_back({std::stoi(lines[i + 1]), static_cast<int>(rank), lines[i + 2]});
    }
  }
  for (auto& [name, some] : holders) {
    std::sort(some.begin(), some.end(),
              [](const Holder& a, const Holder& b) { return a.block < b.block; });
    for (const Holder& holder : some) {
      WEFT_REQUIRE(holder.shape == some[0].shape,
                   "pipeline: the tied parameter " + name + " is " + some[0].shape + " in block " +
                       std::to_string(some[0].block) + " and " + holder.shape + " in block " +
                       std::to_string(holder.block));
    }
  }
  return holders;
}

}  // namespace

Tied::Tied(const Group& group, const std::map<int, std::map<std::string, at::Tensor>>& blocks) {
  std::string mine;
  for (const auto& [block, parameters] : blocks) {
    for (const auto& [name, parameter] : parameters) {
      WEFT_REQUIRE(!name.empty() && name.find('\n') == std::string::npos,
                   "pipeline: the name of a tied parameter must be a single line");
      mine += name + "\n" + std::to_string(block) + "\n" +
              at::str(parameter.sizes(), " ", parameter.dtype()) + "\n";
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, holders] : holders_of(comm::all_gather_texts(group, mine))) {
    One one{.name = name};
    for (const auto& [block, parameters] : blocks) {
      const auto found = parameters.find(name);
      if (found == parameters.end()) continue;
      // Autograd has summed the gradients of one tensor in two blocks.
      if (std::none_of(one.mine.begin(), one.mine.end(),
                       [&](const at::Tensor& other) { return other.is_same(found->second); }))
        one.mine.push_back(found->second);
    }
    if (one.mine.empty()) continue;
    std::vector<int> ranks;
    for (const Holder& holder : holders) {
      if (std::find(ranks.begin(), ranks.end(), holder.rank) == ranks.end())
        ranks.push_back(holder.rank);
    }
    if (ranks.size() == 1 && one.mine.size() == 1) continue;  // no other block has it
    one.counted_here = holders[0].rank == group.rank();
    at::Tensor value = one.mine[0].detach().clone();
    if (ranks.size() > 1) {
      one.ranks = group.subgroup(ranks, "tied/" + name);
      one.ranks->broadcast(value, 0);
    }
    for (at::Tensor& parameter : one.mine) parameter.copy_(value);
    all_.push_back(std::move(one));
  }
}

void Tied::begin() {
  for (One& one : all_) {
    one.before = one.mine[0].grad();
    for (at::Tensor& parameter : one.mine) parameter.mutable_grad() = at::Tensor();
  }
}

void Tied::sum() const {
  for (const One& one : all_) {
    const bool mine =
        std::any_of(one.mine.begin(), one.mine.end(),
                    [](const at::Tensor& parameter) { return parameter.grad().defined(); });
    at::Tensor any = at::full({1}, mine ? 1 : 0, at::kInt);
    if (one.ranks) one.ranks->all_reduce(any, ReduceOp::kMax);
    at::Tensor total = one.before;
    if (any.item<int>() != 0) {
      total = at::zeros_like(one.mine[0].detach());
      for (const at::Tensor& parameter : one.mine) {
        if (parameter.grad().defined()) total += parameter.grad();
      }
      if (one.ranks) one.ranks->all_reduce(total);
      if (one.before.defined()) total = one.before + total;
    }
    for (const at::Tensor& parameter : one.mine)
      parameter.mutable_grad() =
          &parameter == &one.mine[0] || !total.defined() ? total : total.clone();
  }
}

void Tied::abort(const Error& why) const {
  for (const One& one : all_) {
    if (one.ranks) one.ranks->abort(why);
  }
}

bool Tied::is_copy(const at::Tensor& parameter) const {
  for (const One& one : all_) {
    for (std::size_t i = 0; i < one.mine.size(); ++i) {
      if (one.mine[i].is_same(parameter)) return i > 0 || !one.counted_here;
    }
  }
  return false;
}

}  // namespace weft::parallel::internal
