// Slurm's host lists, written out.
#include <algorithm>
#include <charconv>
#include <functional>

#include "weft/base/error.h"
#include "weft/comm/environment.h"

namespace weft::comm {
namespace {

constexpr std::size_t kMostHosts = 65536;

[[noreturn]] void bad(const std::string& message) { throw Error(Errc::kBadConfig, message, {"rank discovery", -1, -1}); }

std::optional<int> to_number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "08-10" -> 08, 09, 10, each between head and tail.
void expand_range(const std::string& range, const std::string& list, const std::function<void(const std::string&)>& add) {
  const auto dash = range.find('-');
  const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
  const auto first = to_number(low), last = to_number(high);
  if (!first || !last || *last < *first) bad("host list \"" + list + "\": \"" + range + "\" is no range");
  for (int i = *first; i <= *last; ++i) {
    std::string digits = std::to_string(i);
    if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
    add(digits);
  }
}

void expand_one(const std::string& item, const std::string& list, std::vector<std::string>& hosts) {
  if (hosts.size() >= kMostHosts) bad("host list \"" + list.substr(0, 80) + "\" has more than " + std::to_string(kMostHosts) + " hosts");
  const auto open = item.find('['), close = item.find(']');
  if (open == std::string::npos && close == std::string::npos) {
    if (item.empty()) bad("host list \"" + list + "\" has an empty name");
    hosts.push_back(item);
    return;
  }
  if (open == std::string::npos || close == std::string::npos || close < open) bad("host list \"" + list + "\": brackets do not match");
  const std::string head = item.substr(0, open), inside = item.substr(open + 1, close - open - 1), tail = item.substr(close + 1);
  for (std::size_t at = 0; at <= inside.size();) {
    const auto end = std::min(inside.find(',', at), inside.size());
    // The tail may hold further brackets: rack[1-2]node[1-4].
    expand_range(inside.substr(at, end - at), list, [&](const std::string& digits) { expand_one(head + digits + tail, list, hosts); });
    at = end + 1;
  }
}

}  // namespace

std::vector<std::string> expand_hosts(const std::string& list) {
  std::vector<std::string> hosts;
  std::string item;
  int depth = 0;
  for (const char c : list) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      expand_one(item, list, hosts);
      item.clear();
    } else {
      item += c;
    }
  }
  expand_one(item, list, hosts);
  return hosts;
}

}  // namespace weft::comm
