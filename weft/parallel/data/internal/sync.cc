#include "weft/parallel/data/internal/sync.h"

namespace weft::parallel::internal {

Weighting weigh(DataParallelOptions::Average average, const std::vector<double>& samples) {
  if (average == DataParallelOptions::Average::kSum) return {};
  const double ranks = static_cast<double>(samples.size());
  double total = 0;
  bool same = true;
  for (double n : samples) {
    total += n;
    same = same && n == samples[0];
  }
  if (average == DataParallelOptions::Average::kByRanks || same || total == 0) return {{}, 1.0 / ranks};
  Weighting weighting;
  for (double n : samples) weighting.weights.push_back(n / total);
  return weighting;
}

}  // namespace weft::parallel::internal
