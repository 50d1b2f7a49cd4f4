#include "weft/train/internal/trained_weights.h"

#include <filesystem>
#include <functional>

#include "weft/base/caught/caught.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/texts.h"
#include "weft/train/internal/room.h"

namespace weft::train::internal {
namespace {

// Hugging Face's hub takes files of up to 5 GB.
constexpr std::int64_t kMaxFileBytes = 5'000'000'000;
constexpr const char* kAdvice =
    "this machine has too little memory for the whole model on every rank: call Trainer::save(), "
    "and weft::load_weights() in a program of one process";

// Runs `body` on rank 0. Its error is thrown on all ranks.
void on_rank_0(const Group& world, const std::function<void()>& body) {
  std::string text;
  Errc code = Errc::kUnavailable;
  if (world.rank() == 0) {
    try {
      body();
    } catch (const std::exception& caught) {
      const Error error = as_error(caught);
      code = error.code();
      text = error.message();
    }
  }
  const std::string told =
      comm::broadcast_text(world, std::to_string(static_cast<int>(code)) + " " + text);
  const std::size_t space = told.find(' ');
  if (space + 1 < told.size())
    throw Error(static_cast<Errc>(std::stoi(told.substr(0, space))), told.substr(space + 1));
}

}  // namespace

void hand_over(Learner& learner, const Group& world) {
  if (Workers* const workers = learner.workers(); workers != nullptr) workers->take_result();
  parallel::ParallelModel& model = learner.model();
  const std::string why = too_small(world, model.gather_bytes(), "copies of the model", 0.8);
  if (why.empty()) return model.gather();
  model.refuse(kAdvice);
  if (world.rank() == 0) {
    log_warn(
        "the program's own module does not get the trained weights, since a machine has too "
        "little memory: " +
        why + "; Trainer::save() writes them");
  }
}

void save_weights(Learner& learner, const Group& world, const std::string& folder) {
  const std::string to = comm::broadcast_text(world, folder), aside = to + "/.tmp-weights";
  on_rank_0(world, [&] {
    make_directories(to);
    if (std::filesystem::exists(aside)) remove_tree(aside);
  });
  checkpoint::Shards shards;
  learner.model().wait_for_weights();
  shards.parts["model"] = learner.parts(false)["model"];
  const std::string slices = checkpoint::save(aside, shards, world, {.keep = 0});
  on_rank_0(world, [&] {
    try {
      checkpoint::write_hub(checkpoint::Reader(slices), "model", to, kMaxFileBytes);
    } catch (...) {  // such as a full disk, on which the slices would stay
      remove_tree(aside);
      throw;
    }
    remove_tree(aside);
  });
}

}  // namespace weft::train::internal
