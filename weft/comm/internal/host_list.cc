// Expands Slurm's host lists.
#include <algorithm>

#include "weft/base/text/numbers.h"
#include "weft/comm/environment.h"
#include "weft/comm/internal/discovery.h"

namespace weft::comm {
namespace {

using internal::bad_discovery;

constexpr std::size_t kMaxHosts = 65536;
constexpr std::size_t kMaxName = 253;  // of a host, RFC 1035

std::string shown(const std::string& text) {
  return '"' + (text.size() > 80 ? text.substr(0, 80) + "…" : text) + '"';
}

// "08-10": 08, 09, 10.
struct Range {
  int first, last;
  std::size_t digits;  // at least
};

// rack[1-2,5]node[1-4]-a: "rack" and its ranges, "node" and its ranges, "-a" and none.
struct Part {
  std::string text;
  std::vector<Range> ranges;
};

Range to_range(const std::string& range, const std::string& list) {
  const auto dash = range.find('-');
  const std::string low = range.substr(0, dash),
                    high = dash == std::string::npos ? low : range.substr(dash + 1);
  const auto first = parse_count(low), last = parse_count(high);
  if (!first || !last || *last < *first)
    bad_discovery("host list " + shown(list) + ": " + shown(range) + " is not a range");
  return {*first, *last, low.size()};
}

std::vector<Part> to_parts(const std::string& item, const std::string& list) {
  if (item.empty()) bad_discovery("host list " + shown(list) + " has an empty name");
  std::vector<Part> parts;
  for (std::size_t at = 0; at < item.size();) {
    const auto open = item.find('[', at), close = item.find(']', at);
    if ((open == std::string::npos) != (close == std::string::npos) || close < open) {
      bad_discovery("host list " + shown(list) + ": the brackets do not match");
    }
    parts.push_back({item.substr(at, open - at), {}});
    if (open == std::string::npos) break;
    for (at = open + 1; at <= close;) {
      const auto end = std::min(item.find(',', at), close);
      parts.back().ranges.push_back(to_range(item.substr(at, end - at), list));
      at = end + 1;
    }
  }
  return parts;
}

// Checks before expanding: the total number of names, and the length of each name.
void check_size(const std::vector<Part>& parts, std::size_t hosts, const std::string& list) {
  std::size_t count = 1, length = 0;
  for (const Part& part : parts) {
    std::size_t choices = part.ranges.empty() ? 1 : 0, longest = 0;
    for (const Range& range : part.ranges) {
      choices += static_cast<std::size_t>(range.last - range.first) + 1;
      longest = std::max({longest, range.digits, std::to_string(range.last).size()});
    }
    length += part.text.size() + longest;
    if (choices > kMaxHosts || (count *= choices) > kMaxHosts - hosts) {
      bad_discovery("host list " + shown(list) + " has more than " + std::to_string(kMaxHosts) +
                    " hosts");
    }
  }
  if (length > kMaxName) {
    bad_discovery("host list " + shown(list) + " has a name of " + std::to_string(length) +
                  " characters, " + std::to_string(kMaxName) + " at most");
  }
}

// Appends every name that begins with `name` and continues with parts[at] and the later parts.
void add_names(const std::vector<Part>& parts, std::size_t at, const std::string& name,
               std::vector<std::string>& hosts) {
  if (at == parts.size()) {
    hosts.push_back(name);
    return;
  }
  const std::string head = name + parts[at].text;
  if (parts[at].ranges.empty()) return add_names(parts, at + 1, head, hosts);
  for (const Range& range : parts[at].ranges) {
    for (std::int64_t i = range.first; i <= range.last; ++i) {
      std::string number = std::to_string(i);
      if (number.size() < range.digits) number.insert(0, range.digits - number.size(), '0');
      add_names(parts, at + 1, head + number, hosts);
    }
  }
}

void expand_one(const std::string& item, const std::string& list, std::vector<std::string>& hosts) {
  const auto parts = to_parts(item, list);
  check_size(parts, hosts.size(), list);
  add_names(parts, 0, "", hosts);
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
