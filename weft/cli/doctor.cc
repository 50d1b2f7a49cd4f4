
#include <iostream>
#include <nlohmann/json.hpp>

#include "weft/base/json/json.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/checks.h"

namespace weft::cli {
namespace {

const char* name_of(Finding::Grade grade) {
  switch (grade) {
    case Finding::Grade::kOk: return "OK";
    case Finding::Grade::kWarn: return "WARN";
    case Finding::Grade::kFail: return "FAIL";
  }
  return "FAIL";
}

void print(const Finding& finding, bool json) {
  if (json) {
    std::cout << json_line({{"check", finding.check},
                            {"grade", name_of(finding.grade)},
                            {"found", finding.found},
                            {"fix", finding.fix}})
              << '\n';
    return;
  }
  const std::string grade = name_of(finding.grade);
  std::cout << grade << std::string(6 - grade.size(), ' ') << finding.check << ": "
            << finding.found;
  if (!finding.fix.empty()) std::cout << "; " << finding.fix;
  std::cout << '\n';
}

}  // namespace

int doctor(const DoctorCommand& command) {
  if (command.topology) {
    std::cout << found_topology();
    return 0;
  }
  bool failed = false;
  std::vector<Finding> findings = machine_findings();
  for (auto& finding : part_findings()) findings.push_back(std::move(finding));
  for (auto& finding : torch_findings()) findings.push_back(std::move(finding));
  for (const auto& finding : findings) {
    print(finding, command.json);
    failed = failed || finding.grade == Finding::Grade::kFail;
  }
  return failed ? 1 : 0;
}

}  // namespace weft::cli
