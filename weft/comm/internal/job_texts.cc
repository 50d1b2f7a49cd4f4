#include "weft/comm/internal/job_texts.h"

#include <torch/version.h>

#include <array>
#include <charconv>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/comm/internal/meeting.h"
#include "weft/comm/texts.h"
#include "weft/net/tcp/tcp.h"

namespace weft::comm::internal {
namespace {

constexpr const char *kTexts = "job/texts", *kSecret = "secret";
constexpr std::array kVersions = {"weft", "libtorch"};

// "name 12\n" and 12 bytes, for each text.
std::string packed(const JobTexts& texts) {
  std::string all;
  for (const auto& [name, text] : texts)
    all += name + " " + std::to_string(text.size()) + "\n" + text;
  return all;
}

JobTexts unpacked(const std::string& all) {
  JobTexts texts;
  for (std::size_t at = 0; at < all.size();) {
    const auto line = all.find('\n', at), blank = all.rfind(' ', line);
    std::size_t bytes = 0;
    const bool good = line != std::string::npos && blank != std::string::npos && blank > at &&
                      std::from_chars(all.data() + blank + 1, all.data() + line, bytes).ptr ==
                          all.data() + line &&
                      bytes <= all.size() - line - 1;
    if (!good)
      throw Error(Errc::kCorrupt,
                  "the store of the job has an unreadable description of it; does "
                  "another program use the same store?");
    texts[all.substr(at, blank - at)] = all.substr(line + 1, bytes);
    at = line + 1 + bytes;
  }
  return texts;
}

std::string on_secrets(const std::string& mine, const std::string& theirs, const Names& names) {
  const auto with = [](const std::string& digest) {
    return digest.empty() ? " without a secret" : " with the job's secret";
  };
  const std::string what =
      mine.empty() || theirs.empty()
          ? names.me + " joined" + with(mine) + " and " + names.other + with(theirs)
          : names.me + " and " + names.other + " have different secrets";
  return what + "; start all ranks with the same launcher, and do not set WEFT_SECRET_FD by hand";
}

// The launcher learns the code too, if the program has another exit code: the next try would be
// refused as well.
[[noreturn]] void refuse(const std::string& why, const Error::Context& context) {
  const Error error(Errc::kBadConfig, why, context);
  record_failure(error);
  throw error;
}

}  // namespace

JobTexts job_texts(const BackendOptions& options) {
  JobTexts texts = options.alike;
  texts[kVersions[0]] = WEFT_VERSION;
  texts[kVersions[1]] = TORCH_VERSION;
  texts[kSecret] = options.secret.empty() ? "" : net::secret_digest(options.secret);
  return texts;
}

std::string difference(const JobTexts& mine, const JobTexts& theirs, const Names& names) {
  const auto in = [](const JobTexts& texts, const std::string& name) {
    const auto found = texts.find(name);
    return found == texts.end() ? std::string() : found->second;
  };
  for (const char* program : kVersions) {
    const std::string here = in(mine, program), there = in(theirs, program);
    if (here != there)
      return names.me + " runs " + program + " " + here + " and " + names.other + " " + program +
             " " + there + "; start all ranks with the same version";
  }
  if (in(mine, kSecret) != in(theirs, kSecret))
    return on_secrets(in(mine, kSecret), in(theirs, kSecret), names);
  JobTexts all = mine;
  all.insert(theirs.begin(), theirs.end());
  for (const auto& [name, text] : all) {
    const std::string here = in(mine, name), there = in(theirs, name);
    if (here == there) continue;
    const auto [first, second] = first_difference(here, there);
    return "the " + name + " of " + names.me + " has " + first + " and that of " + names.other +
           " " + second + "; start all ranks with the same program and configuration";
  }
  return "";
}

void compare_at_start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      const BackendOptions& options) {
  if (store == nullptr) return;  // a group of one that nobody joins
  const std::string mine = packed(job_texts(options)),
                    sum = std::to_string(crc32c(mine.data(), mine.size()));
  if (rank == 0) set_texts(*store, options);
  if (size == 1) return;
  const Party party{.rank = rank,
                    .size = size,
                    .timeout = options.to_connect(),
                    .members = {0},
                    .name = "job" + std::to_string(options.epoch) + "/",
                    .lost = options.lost_rank};
  if (exchange_over(store, party)(sum)[0] == sum) return;
  const std::string why = difference(unpacked(mine), unpacked(store->get_to_str(kTexts)),
                                     {"rank " + std::to_string(rank), "rank 0"});
  if (!why.empty()) refuse(why, {"init", rank, 0});
}

void set_texts(c10d::Store& store, const BackendOptions& options) {
  store.set(kTexts, packed(job_texts(options)));
}

void leave_texts(c10d::Store& store, const BackendOptions& options) {
  if (!store.check({kTexts})) set_texts(store, options);
}

void compare_with_job(c10d::Store& store, const BackendOptions& options, Deadline deadline) {
  while (!store.check({kTexts})) {
    if (deadline.passed())
      throw Error(Errc::kTimeout, "the ranks of the job have not met yet: there is nothing to join",
                  {"join"});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string why = difference(job_texts(options), unpacked(store.get_to_str(kTexts)),
                                     {"this process", "the running job"});
  if (!why.empty()) refuse(why, {"join"});
}

}  // namespace weft::comm::internal
