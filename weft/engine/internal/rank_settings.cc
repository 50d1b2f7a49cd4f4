#include "weft/engine/internal/rank_settings.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <bit>
#include <locale>
#include <sstream>

#include "weft/base/error.h"
#include "weft/comm/texts.h"
#include "weft/engine/internal/registered_params.h"
#include "weft/optim/learning_rate.h"

namespace weft::engine::internal {
namespace {

class Hash {
 public:
  void add(std::uint64_t number) { value_ = (value_ ^ number) * 1099511628211U; }
  std::uint64_t value() const { return value_ ^ (value_ >> 29); }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

std::string number(double value) {
  std::ostringstream text;
  text.precision(10);
  text << value;
  return text.str();
}

}  // namespace

RankSettings::RankSettings(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) {
    for (const auto& item : block.module->named_modules()) {
      const std::string name = full_name(block.name, item.key());
      modules_.emplace_back(name.empty() ? "the model" : name, item.value());
    }
    for (const auto& item : block.module->named_buffers()) {
      if (item.value().defined())
        buffers_.emplace_back(full_name(block.name, item.key()), item.value());
    }
  }
}

std::uint64_t RankSettings::hash_of_modules() const {
  Hash hash;
  for (const auto& [name, module] : modules_) hash.add(module->is_training() ? 1 : 2);
  for (const auto& [name, buffer] : buffers_) {
    hash.add(static_cast<std::uint64_t>(buffer.scalar_type()) + 3);
    for (const std::int64_t size : buffer.sizes()) hash.add(static_cast<std::uint64_t>(size));
  }
  return hash.value();
}

std::uint64_t RankSettings::note(GradientFacts gradients) {
  if (optimizer_) progress_ = optimizer_();
  gradients_ = gradients;
  hash_ = hash_of_modules();
  Hash all;
  all.add(std::bit_cast<std::uint32_t>(static_cast<float>(progress_.lr)));
  all.add((gradients.unknown_samples ? 1 : 0) + (gradients.added ? 2 : 0) +
          4 * static_cast<std::uint64_t>(gradients.dropped));
  all.add(static_cast<std::uint64_t>(progress_.steps));
  all.add(hash_);
  return all.value();
}

// An entry for each module and buffer.
std::string RankSettings::modules() const {
  std::ostringstream list;
  list.imbue(std::locale::classic());
  for (const auto& [name, module] : modules_)
    list << name << " in " << (module->is_training() ? "train()" : "eval()") << "; ";
  for (const auto& [name, buffer] : buffers_)
    list << "buffer " << name << " " << buffer.scalar_type() << buffer.sizes() << "; ";
  return list.str();
}

void RankSettings::compare(const Group& group) const {
  constexpr std::int64_t kRow = 6;
  const at::Tensor mine =
      at::tensor({std::bit_cast<std::int64_t>(progress_.lr),
                  static_cast<std::int64_t>(gradients_.unknown_samples),
                  static_cast<std::int64_t>(gradients_.added), std::bit_cast<std::int64_t>(hash_),
                  progress_.steps, static_cast<std::int64_t>(gradients_.dropped)},
                 at::kLong);
  at::Tensor all = at::empty({group.size(), kRow}, at::kLong);
  group.all_gather(all, mine);
  const auto* const rows = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::int64_t* const row = rows + kRow * static_cast<std::ptrdiff_t>(rank);
    const std::string other = "rank " + std::to_string(rank);
    const auto refuse = [&](const std::string& why) {
      throw Error(Errc::kInvalidArgument, why, {"step", group.rank(), rank});
    };
    const auto first_lr = std::bit_cast<double>(rows[0]), lr = std::bit_cast<double>(row[0]);
    if (!optim::are_equal_rates(first_lr, lr))
      refuse("the learning rate is " + number(first_lr) + " on rank 0 and " + number(lr) + " on " +
             other + "; call set_lr() alike on all ranks");
    if (row[5] != rows[5])
      refuse("zero_grad() has dropped batches before this step: " + std::to_string(rows[5]) +
             " on rank 0 and " + std::to_string(row[5]) + " on " + other +
             "; drop them on all ranks, or wrap that backward() in no_sync()");
    if (row[4] != rows[4])
      refuse("rank 0 has made " + std::to_string(rows[4]) + " steps and " + other + " " +
             std::to_string(row[4]) + "; call step() equally often on all ranks");
    if (row[1] != rows[1])
      refuse("the samples of the gradients on " + (rows[1] != 0 ? std::string("rank 0") : other) +
             " are not known, so its gradients would not count; call forward() of the parallel "
             "model on all ranks, not that of the module, or set_samples()");
    if (row[2] != rows[2])
      refuse("zero_grad() was not called on " + (rows[2] != 0 ? std::string("rank 0") : other) +
             " before this step, but on other ranks; call it alike on all ranks");
    if (row[3] == rows[3]) continue;
    const std::string first = comm::broadcast_text(group, modules()),
                      second = comm::broadcast_text(group, modules(), rank);
    const auto [here, there] = comm::first_difference(first, second);
    refuse((first == second ? "the modules of rank 0 and " + other + " differed in backward()"
                            : "the ranks' modules differ: rank 0 has " + here + ", and " + other +
                                  " has " + there) +
           "; call train() and eval(), and change buffers, alike on all ranks");
  }
}

}  // namespace weft::engine::internal
