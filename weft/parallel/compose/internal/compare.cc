// Compares the values that several ranks hold, and heals those of a minority.
#include <ATen/ATen.h>

#include <algorithm>
#include <locale>
#include <map>
#include <sstream>

#include "weft/base/crc32c.h"
#include "weft/comm/texts.h"
#include "weft/parallel/compose/internal/model_state.h"

namespace weft::parallel::internal {
namespace {

using Difference = ParallelModel::Difference;
// Slices of this rank by key.
using Mine = std::map<std::string, checkpoint::Slice>;
// By key, then by checksum: the ranks that hold a slice with this checksum.
using Holders = std::map<std::string, std::map<std::string, std::vector<int>>>;

constexpr char kEndOfKey = '\t';

std::uint32_t checksum_of(const checkpoint::Slice& slice) {
  const at::Tensor values = slice.tensor.contiguous().cpu();
  return crc32c(values.const_data_ptr(), values.nbytes());
}

Holders holders_of(const Mine& mine, const Group& world) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  for (const auto& [key, slice] : mine) text << key << kEndOfKey << checksum_of(slice) << '\n';
  const std::vector<std::string> all = comm::all_gather_texts(world, text.str());
  Holders holders;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::istringstream lines(all[static_cast<std::size_t>(rank)]);
    for (std::string line; std::getline(lines, line);) {
      const auto end = line.rfind(kEndOfKey);
      holders[line.substr(0, end)][line.substr(end + 1)].push_back(rank);
    }
  }
  return holders;
}

// The checksum that more than half of the holders have. Null: none.
const std::vector<int>* majority_of(const std::map<std::string, std::vector<int>>& by_checksum) {
  std::size_t holders = 0;
  for (const auto& [checksum, ranks] : by_checksum) holders += ranks.size();
  for (const auto& [checksum, ranks] : by_checksum) {
    if (2 * ranks.size() > holders) return &ranks;
  }
  return nullptr;
}

void heal(const Group& world, const Mine& mine, const std::string& key, int source, int target) {
  if (world.rank() == source) world.send(mine.at(key).tensor.contiguous(), target);
  if (world.rank() != target) return;
  at::Tensor values = at::empty_like(mine.at(key).tensor, at::MemoryFormat::Contiguous);
  world.recv(values, source);
  mine.at(key).tensor.copy_(values);
}

}  // namespace

std::vector<Difference> compare_replicas(Composition& c, ModelState& state) {
  const at::NoGradGuard no_grad;
  const Group& world = c.mesh.world();
  if (world.size() == 1) return {};  // nothing to compare with
  return c.guarded([&] {
    Mine mine;
    for (Stage& stage : c.stages) {
      if (!stage.sharded) continue;
      const auto placing = [&](const std::string& own) {
        const Parameter& p = *stage.find(own);
        return p.copy ? checkpoint::Rectangle{} : c.place_of(p);
      };
      for (checkpoint::Slice& slice : stage.sharded->held(placing)) {
        std::string key = key_of(slice);
        mine.emplace(std::move(key), std::move(slice));
      }
    }
    world.barrier();  // no rank is still updating memory that it shares with others
    std::vector<Difference> differences;
    for (const auto& [key, by_checksum] : holders_of(mine, world)) {
      if (by_checksum.size() < 2) continue;
      const std::vector<int>* const majority = majority_of(by_checksum);
      Difference difference{key.substr(0, key.find(' ')), {}, majority != nullptr};
      for (const auto& [checksum, ranks] : by_checksum) {
        if (&ranks == majority) continue;
        for (const int rank : ranks) {
          difference.ranks.push_back(rank);
          if (majority != nullptr) heal(world, mine, key, majority->front(), rank);
        }
      }
      std::sort(difference.ranks.begin(), difference.ranks.end());
      differences.push_back(std::move(difference));
    }
    const bool healed = std::any_of(differences.begin(), differences.end(),
                                    [](const Difference& one) { return one.is_healed; });
    if (healed) state.take_changes();
    return differences;
  });
}

}  // namespace weft::parallel::internal
