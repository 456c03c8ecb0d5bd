# The machine code of syscall_plan.py, for x86-64: make the system calls of an encoded plan, until one fails.
#
# syscall_plan.py has the assembled bytes, so that no compiler is needed to use them; tests/isolation/test_plan.py
# assembles this file and compares. The code is position-independent, and touches no memory but the plan's table, the
# places that its entries name, and, in the function, the stack and the state of the caller.
#
# In:  r15  the table: one entry of 80 bytes for each call
#      r14  the number of calls, at least 1
# Out: r14  the number of calls that were not made; the failed one counts. 0: all succeeded
#      rax  the result of the last call

        .intel_syntax noprefix

        # An entry, as _ENTRY of syscall_plan.py packs it
        .set    NUMBER, 0x00
        .set    ARG1, 0x08
        .set    ARG2, 0x10
        .set    ARG3, 0x18
        .set    ARG4, 0x20
        .set    ARG5, 0x28
        .set    RESULT, 0x30            # set by this code
        .set    TOLERATED, 0x38         # a negative errno that does not count as a failure, or 0
        .set    TARGET1, 0x40           # two places that get the result: arguments of later calls,
        .set    TARGET2, 0x48           # or a word that nothing reads
        .set    ENTRY_SIZE, 0x50

        # RUN_PLAN: runs in this process, and in a stopped child, where `ptrace.Stopped.run` puts it
        .section .run_plan, "ax"
next:
        mov     rax, [r15 + NUMBER]
        mov     rdi, [r15 + ARG1]
        mov     rsi, [r15 + ARG2]
        mov     rdx, [r15 + ARG3]
        mov     r10, [r15 + ARG4]
        mov     r8, [r15 + ARG5]
        syscall                         # changes rax, rcx and r11 only
        mov     [r15 + RESULT], rax
        test    rax, rax
        jns     succeeded
        cmp     rax, [r15 + TOLERATED]
        jne     done
succeeded:
        mov     rcx, [r15 + TARGET1]
        mov     [rcx], rax
        mov     rcx, [r15 + TARGET2]
        mov     [rcx], rax
        add     r15, ENTRY_SIZE
        dec     r14
        jne     next
done:

        # _ENTER, RUN_PLAN, _LEAVE are a function: void run(void *table, size_t count, int64_t state[2])
        .section .enter, "ax"
        push    r13                     # r13, r14 and r15 belong to the caller
        push    r14
        push    r15
        mov     r15, rdi                # table
        mov     r14, rsi                # count
        mov     r13, rdx                # state

        .section .leave, "ax"
        mov     [r13 + 0], r14          # state[0]: calls that were not made
        mov     [r13 + 8], rax          # state[1]: the last result
        pop     r15
        pop     r14
        pop     r13
        ret

        # BREAKPOINT, after RUN_PLAN in a stopped child: SIGTRAP tells the tracer that the plan is done
        .section .breakpoint, "ax"
        int3
