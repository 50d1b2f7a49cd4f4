// A ring all-reduce over four ranks takes 2 * (4 - 1) rounds (Patarasuk and Yuan, 2009).
#include <cstdio>

#include "weft/schedule.h"

int main() {
  using namespace weft::schedule;
  const Request request{.collective = Collective::kAllReduce,
                        .algorithm = Algorithm::kRing,
                        .world = 4,
                        .count = 1000};
  const int rounds = cost(request).rounds;
  std::printf("%s %s: %d rounds, %zu steps\n", to_string(request.algorithm),
              to_string(request.collective), rounds, make(request).steps.size());
  return rounds == 6 ? 0 : 1;
}
