# Linked into the wheel's executable: of two functions of the C library the versions that glibc 2.34
# has too. The linker would take those of 2.35, if it finds them, and the executable would not start
# where they are not. They differ in how errors are reported, which nobody looks at.
        .symver hypot_before_2_35, hypot@GLIBC_2.2.5
        .symver hypotf_before_2_35, hypotf@GLIBC_2.2.5
        .text
        .globl  hypot, hypotf
        # For this executable alone: libm's own references stay as they are.
        .hidden hypot, hypotf
        .type   hypot, %function
        .type   hypotf, %function
hypot:  jmp     hypot_before_2_35@PLT
hypotf: jmp     hypotf_before_2_35@PLT
        .section .note.GNU-stack, "", %progbits
