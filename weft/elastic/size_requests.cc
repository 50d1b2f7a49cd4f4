#include "weft/elastic/recovery.h"

#include <iterator>
#include <sstream>

#include "weft/agent/link.h"

namespace weft::elastic {

int SizeRequests::ranks() {
  agent::Link* const link = agent::launcher();
  while (const auto message = link != nullptr ? link->next() : std::nullopt) {
    if (message->verb != "ranks") continue;
    std::istringstream numbers(message->value);
    numbers >> ranks_;
    newcomers_.assign(std::istream_iterator<int>(numbers), std::istream_iterator<int>());
  }
  return ranks_;
}

}  // namespace weft::elastic
