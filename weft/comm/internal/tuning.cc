#include "weft/comm/internal/tuning.h"

#include "weft/base/error.h"
#include "weft/base/text/variables.h"
#include "weft/plan/collectives/calibration.h"

namespace weft::comm::internal {
namespace {

using schedule::Algorithm;

std::optional<Algorithm> parse(std::string name) {
  if (name.empty()) name = variable("WEFT_ALGORITHM");
  if (name.empty() || name == "auto") return std::nullopt;
  try {
    const Algorithm algorithm = schedule::parse_algorithm(name);
    if (algorithm != Algorithm::kDirect) return algorithm;
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig, "algorithm: " + error.message());
  }
  throw Error(Errc::kBadConfig,
              "algorithm direct needs shared memory and cannot run over messages; ranks of one "
              "host use it automatically");
}

plan::CostTable table_for(bool one_machine) {
  return one_machine || is_variable_set("WEFT_CALIBRATION") ? plan::load_table()
                                                            : plan::default_table();
}

}  // namespace

Tuning agree_on_tuning(const BackendOptions& options, bool one_machine,
                       const net::Exchange& exchange, int rank) {
  Tuning tuning{.table = nullptr,
                .algorithm = parse(options.algorithm),
                .ordered_sums = options.ordered_sums};
  const std::string name =
      std::string(tuning.algorithm ? schedule::to_string(*tuning.algorithm) : "auto") +
      (tuning.ordered_sums ? " with ordered sums" : "");
  const auto all = exchange(name + "\n" + (rank == 0 ? table_for(one_machine).text() : ""));
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    const std::string theirs = all[peer].substr(0, all[peer].find('\n'));
    if (theirs == name) continue;
    throw Error(Errc::kBadConfig,
                "rank " + std::to_string(peer) + " uses algorithm " + theirs + " and rank " +
                    std::to_string(rank) + " " + name +
                    "; set WEFT_ALGORITHM and ordered_sums to the same values on all ranks",
                {"init", rank, static_cast<int>(peer)});
  }
  tuning.table = std::make_shared<plan::CostTable>(
      plan::CostTable::parse(all[0].substr(all[0].find('\n') + 1)));
  return tuning;
}

Chooser::Chooser(const Tuning& tuning, plan::Transport transport, int world)
    // A sum of two numbers does not depend on their order.
    : algorithm_(tuning.algorithm),
      ordered_sums_(tuning.ordered_sums || world <= 2),
      planner_(tuning.table ? *tuning.table : plan::default_table(), {transport, world}) {}

schedule::Request Chooser::decide(schedule::Request request, std::size_t element) const {
  if (ordered_sums_ && is_ordered(request.collective) && request.world > 2) {
    request.algorithm = Algorithm::kSharded;
    return request;
  }
  if (algorithm_ && schedule::supports(*algorithm_, request.collective)) {
    request.algorithm = *algorithm_;
    return request;
  }
  const plan::Candidate best = planner_.choose({request.collective, request.count, element});
  request.algorithm = best.algorithm;
  request.chunk = best.chunk / static_cast<std::int64_t>(element);
  return request;
}

}  // namespace weft::comm::internal
