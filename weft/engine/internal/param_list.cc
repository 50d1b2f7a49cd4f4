#include "weft/engine/internal/param_list.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <tuple>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/texts.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/overlaps.h"

namespace weft::engine::internal {
namespace {

// "fc1.weight Float[128, 784]; …": the list on which all ranks must agree.
std::string list_of(const std::vector<Param>& params) {
  std::string list;
  for (const auto& param : params) {
    list += checkpoint::outline({checkpoint::whole_slice(param.name, param.tensor)});
    if (!param.tensor.requires_grad()) list.insert(list.size() - 2, " frozen");
  }
  return list;
}

}  // namespace

ParamList::ParamList(const std::vector<Block>& blocks) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> known;
  for (int block = 0; block < static_cast<int>(blocks.size()); ++block) {
    const auto& [name, module] = std::tie(blocks[index(block)].name, blocks[index(block)].module);
    for (const auto& item : module->named_parameters(true)) {
      const auto [found, is_new] =
          known.try_emplace(item.value().unsafeGetTensorImpl(), params_.size());
      if (is_new)
        params_.push_back({(name.empty() ? "" : name + ".") + item.key(), item.value(), {}});
      auto& users = params_[found->second].blocks;
      if (users.empty() || users.back() != block) users.push_back(block);
    }
  }
  check_apart(params_);
  const auto trains = [](const Param& param) { return param.tensor.requires_grad(); };
  trained_ = static_cast<std::size_t>(
      std::stable_partition(params_.begin(), params_.end(), trains) - params_.begin());
  WEFT_REQUIRE(trained_ > 0, "data_parallel, sharded: no parameter requires a gradient");
  std::vector<std::string> all = names();
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  WEFT_REQUIRE(twice == all.end(),
               "sharded: two parameters are called '" + *twice + "'; give blocks different names");
}

std::vector<std::string> ParamList::names() const {
  std::vector<std::string> all;
  for (const auto& param : params_) all.push_back(param.name);
  return all;
}

bool ParamList::is_on_device() const {
  const at::Device device = params_[0].tensor.device();
  for (const Param& param : params_) {
    WEFT_REQUIRE(param.tensor.device() == device,
                 "data_parallel: '" + params_[0].name + "' is on " + device.str() + " and '" +
                     param.name + "' on " + param.tensor.device().str() +
                     "; move the whole model to one device");
  }
  return !device.is_cpu();
}

// Each rank sends a hash of its list. If one differs from rank 0's, both lists are sent and the
// error names the first difference.
int ParamList::check_same(const Group& group) {
  // Ranks may have made different numbers of models before this one.
  static std::atomic<std::int64_t> models = 0;  // of this process; rank 0's number counts
  const bool on_device = is_on_device();
  number_ = ++models;
  if (group.size() == 1) return on_device ? 1 : 0;
  const std::string mine = list_of(params_);
  at::Tensor hash = at::tensor(
      {static_cast<std::int64_t>(std::hash<std::string>{}(mine) >> 1),
       static_cast<std::int64_t>(mine.size()), static_cast<std::int64_t>(on_device), number_},
      at::kLong);
  at::Tensor all = at::empty({group.size(), 4}, at::kLong);
  group.all_gather(all, hash);
  for (int peer = 1; peer < group.size(); ++peer) {
    if (at::equal(all[peer].narrow(0, 0, 2), all[0].narrow(0, 0, 2))) continue;
    const std::string first = comm::broadcast_text(group, mine),
                      other = comm::broadcast_text(group, mine, peer);
    const auto [here, there] = comm::first_difference(first, other);
    throw Error(Errc::kInvalidArgument,
                "the ranks' modules differ: rank 0 has " + here + ", and " + there + " on rank " +
                    std::to_string(peer),
                {"data_parallel", group.rank(), peer});
  }
  number_ = all[0][3].item<std::int64_t>();
  return static_cast<int>(all.select(1, 2).sum().item<std::int64_t>());
}

}  // namespace weft::engine::internal
