// A job may remove or replace a checkpoint after it was listed, and files of it after its manifest
// was read. This does not mean damage: a newer checkpoint has taken its place. So the folders are
// listed again if a name has another folder than before, or none.
#include "weft/checkpoint/internal/latest.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "weft/base/caught/caught.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/internal/folder.h"
#include "weft/checkpoint/internal/folder_lock.h"

namespace weft::checkpoint::internal {
namespace {

// The text of a rank, or nullopt if the checkpoint in question is gone.
using Answer = std::optional<std::string>;

// First characters of answers on their way to other ranks.
constexpr char kText = '=', kGone = '-', kFailed = '!';

// Returns every rank's answer, ordered by rank, on every rank. An error of one rank is thrown on
// all ranks, so that no rank is left in a collective.
std::vector<Answer> answers_of(const Ranks& ranks, const std::function<Answer()>& answer) {
  if (ranks.size == 1) return {answer()};
  std::string mine;
  try {
    const Answer text = answer();
    mine = text ? kText + *text : std::string(1, kGone);
  } catch (const std::exception& error) {
    mine = kFailed + error_text(as_error(error));
  }
  std::vector<Answer> all;
  for (const std::string& one : ranks.exchange(mine)) {
    if (one.front() == kFailed) {
      const auto [code, why] = read_error_text(one.substr(1));
      throw Error(code, why, {"checkpoint", ranks.rank});
    }
    all.emplace_back();
    if (one.front() == kText) all.back() = one.substr(1);
  }
  return all;
}

// Returns the damage in this rank's share of a checkpoint. Empty: there is none. nullopt: the
// checkpoint was removed or replaced.
Answer damage_of(const std::string& folder, const Ranks& ranks) {
  // Open, so that the system gives its inode to no other folder.
  const UniqueFd opened(::open(folder.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!opened && errno != ENOENT) fail_io("cannot open", folder);
  const auto is_gone = [&] { return !opened || !has_name(opened.get(), folder); };
  try {
    verify_share(folder, read_manifest(folder), ranks.rank, ranks.size);
  } catch (const Error& error) {
    if (is_gone()) return std::nullopt;
    if (error.code() != Errc::kCorrupt) throw;
    return error.message();
  }
  if (is_gone()) return std::nullopt;
  return "";
}

// Returns nullopt if a checkpoint was removed or replaced after it was listed.
std::optional<Latest> find_among_listed(const std::string& dir, const Ranks& ranks) {
  // Rank 0 alone lists the folders, so that all ranks verify the same ones in the same order.
  const auto listed = answers_of(ranks, [&]() -> Answer {
    std::string names;
    if (ranks.rank == 0) {
      for (const auto& [step, folder] : list_folders(dir)) names += folder + '\n';
    }
    return names;
  });
  Latest result;
  std::istringstream folders(listed.front().value());
  for (std::string folder; std::getline(folders, folder);) {
    const auto damages = answers_of(ranks, [&] { return damage_of(folder, ranks); });
    if (std::ranges::any_of(damages, [](const Answer& one) { return !one.has_value(); }))
      return std::nullopt;
    const auto damage =
        std::ranges::find_if(damages, [](const Answer& one) { return !one->empty(); });
    if (damage == damages.end()) {
      result.folder = folder;
      return result;
    }
    result.damaged.push_back(**damage);
    result.damaged_steps.push_back(step_of_folder(folder));
  }
  return result;
}

}  // namespace

Latest find_latest(const std::string& dir, const Ranks& ranks) {
  constexpr int kTries = 100;  // each is in vain only if a save has ended meanwhile
  for (int i = 0; i < kTries; ++i) {
    if (const auto found = find_among_listed(dir, ranks)) return *found;
  }
  throw Error(Errc::kUnavailable, "a job removes or replaces the checkpoints in " + dir +
                                      " before they are verified; try again");
}

}  // namespace weft::checkpoint::internal
